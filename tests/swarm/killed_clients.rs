//! Clients that are killed at any moment: the batch fills all the same, their slots come back in time, and every episode
//! that was begun is accounted for.

#[allow(dead_code, reason = "each test file uses a part of what they share")]
use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::support::swarm::{ENOUGH_EPISODES, Swarm};
use futures_util::StreamExt;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

const BATCH: u64 = 300;
const SLOTS: usize = 48;
/// Seconds.
const DISCARD: f64 = 2.0;
const GRACE: Duration = Duration::from_secs(2);

/// Where in an episode its client is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    AfterClaim,
    InAChat,
    BeforeTheEnd,
    WhileEnding,
}

const DEATHS: [Death; 4] = [
    Death::AfterClaim,
    Death::InAChat,
    Death::BeforeTheEnd,
    Death::WhileEnding,
];

/// What became of an attempt, as its client would know.
#[derive(Debug, PartialEq)]
enum Attempt {
    NotClaimed,
    Ended,
    Killed(Death),
}

/// One client with connections of its own, which close when it is dropped: all that a server sees of a killed process.
struct Client {
    http: reqwest::Client,
    url: String,
    name: String,
}

impl Client {
    fn new(url: &str, name: String) -> Self {
        Self {
            http: reqwest::Client::builder().tls_certs_only([]).build().unwrap(),
            url: url.to_owned(),
            name,
        }
    }

    fn post(&self, path: &str, body: &Value) -> reqwest::RequestBuilder {
        self.http.post(format!("{}{path}", self.url)).json(body)
    }

    async fn claim(&self) -> Option<Value> {
        let body = json!({"client_uuid": self.name, "episode_type": "train", "discard_episode_timeout": DISCARD});
        let claimed: Value = self
            .post("/claim_episode", &body)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        (claimed["success"] == true).then_some(claimed)
    }

    /// An episode up to its end or its client's.
    async fn attempt(self, task: u64, death: Option<Death>) -> Attempt {
        let Some(claimed) = self.claim().await else {
            return Attempt::NotClaimed;
        };
        if death == Some(Death::AfterClaim) {
            return Attempt::Killed(Death::AfterClaim);
        }
        let chat = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
        let chat = self
            .post("/v1/chat/completions", &chat)
            .bearer_auth(claimed["openai_api_key"].as_str().unwrap());
        let mut answer = chat.send().await.unwrap().bytes_stream();
        while let Some(piece) = answer.next().await {
            piece.unwrap();
            if death == Some(Death::InAChat) {
                return Attempt::Killed(Death::InAChat);
            }
        }
        let end = json!({
            "client_uuid": self.name, "episode_uuid": claimed["episode_uuid"], "task_id": format!("t{task}"),
            "workflow_output": {"reward": task, "metadata": {"task_id": format!("t{task}")}},
        });
        let end = self.post("/end_episode", &end).send();
        match death {
            None => {
                assert_eq!(end.await.unwrap().status(), 200);
                Attempt::Ended
            }
            Some(Death::WhileEnding) => {
                let _ = tokio::time::timeout(Duration::from_micros(200 * (task % 8)), end).await;
                Attempt::Killed(Death::WhileEnding)
            }
            Some(death) => Attempt::Killed(death),
        }
    }
}

/// Tries episodes until the batch is full; every third client dies. What was begun.
async fn work(url: String, worker: u64) -> Vec<Attempt> {
    let mut rng = ChaCha8Rng::seed_from_u64(worker);
    let http = Client::new(&url, "watcher".into()).http;
    let mut attempts = Vec::new();
    loop {
        let death = rng.random_ratio(1, 3).then(|| *DEATHS.choose(&mut rng).unwrap());
        let client = Client::new(&url, format!("w{worker}-{}", attempts.len()));
        match client.attempt(rng.random_range(0..100), death).await {
            Attempt::NotClaimed => {
                let status: Value = http
                    .get(format!("{url}/get_engine_status"))
                    .send()
                    .await
                    .unwrap()
                    .json()
                    .await
                    .unwrap();
                if status["engine_status"] != "ENGINE.ROLLING" || status["global_step"] != 1 {
                    return attempts;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            attempt => attempts.push(attempt),
        }
    }
}

async fn swarm() -> Swarm {
    let swarm = Swarm::start().await;
    swarm
        .engines
        .behave(|engine| engine.stream = (4, Duration::from_millis(2)));
    swarm
        .rolling_with(json!({
            "data": {"train_batch_size": BATCH}, "rollout": {"num_repeat": 1, "max_env_worker": SLOTS},
            "swarm_mode_sample_collection_method": ENOUGH_EPISODES,
        }))
        .await;
    swarm
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_fills_while_a_third_of_the_clients_is_killed_and_nothing_is_miscounted() {
    let swarm = swarm().await;
    let workers = (0..16).map(|worker| tokio::spawn(work(swarm.url.clone(), worker)));
    let workers = futures_util::future::join_all(workers).await;
    let last_death = Instant::now();
    swarm.until_step(2).await;
    let waited = last_death.elapsed();
    assert!(
        waited <= Duration::from_secs_f64(DISCARD) + GRACE,
        "the dead held the batch up for {waited:?}"
    );

    let attempts: Vec<Attempt> = workers.into_iter().flat_map(|worker| worker.unwrap()).collect();
    let count = |what: Attempt| attempts.iter().filter(|attempt| **attempt == what).count();
    let killed = DEATHS.map(|death| count(Attempt::Killed(death)));
    assert!(killed.iter().all(|&deaths| deaths > 10), "{killed:?}");
    let ends = swarm.engines.record().ends;
    let ids: HashSet<&str> = ends.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids.len(), ends.len(), "none was taken twice");
    assert!(ends.len() as u64 >= BATCH);
    let ended = count(Attempt::Ended);
    assert!(
        (ended..=ended + killed[3]).contains(&ends.len()),
        "{ended} {killed:?} {}",
        ends.len()
    );
    let idle = attempts.len() - ends.len();
    assert_eq!(swarm.pool().await["dropped_episodes"], json!({ "idle": idle }));
    assert_eq!(
        swarm.post("/get_episode_buffer", json!({})).await.1,
        json!({"buffer": []})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn all_slots_of_killed_clients_come_back_within_the_discard_timeout_and_two_seconds() {
    let swarm = swarm().await;
    for number in 0..SLOTS {
        assert!(Client::new(&swarm.url, format!("dead{number}")).claim().await.is_some());
    }
    let killed = Instant::now();
    let next = Client::new(&swarm.url, "next".into());
    assert!(next.claim().await.is_none(), "they are all taken");
    for _ in 0..SLOTS {
        while next.claim().await.is_none() {
            let waited = killed.elapsed();
            assert!(
                waited <= Duration::from_secs_f64(DISCARD) + GRACE,
                "still taken after {waited:?}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    assert_eq!(swarm.pool().await["dropped_episodes"], json!({ "idle": SLOTS }));
}
