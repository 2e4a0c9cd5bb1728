//! The other ranks: they do what the first one orders.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::link::{Arrival, Link, connect};
use super::local::Local;
use super::{Answer, Order, RankError};
use crate::collective::Collective;
use crate::config::from_json;
use crate::engine::model_thread::Worker;
use crate::engine::storage::checkpoint::Checkpoint;
use crate::engine::worker::ModelWorker;
use crate::inference::{SampleEvent, SampleRequest};

/// Follows the first rank until it ends.
///
/// # Errors
/// Fails if the model cannot be loaded, or an update fails; the first rank is told.
pub fn follow(collective: &Arc<dyn Collective>) -> Result<(), RankError> {
    let local = Local::find(&**collective)?;
    let (mut links, orders) = connect(&**collective)?;
    let rank = collective.rank();
    // A rank other than the first has one link.
    let Some(mut first) = links.pop() else {
        return Err(RankError::Gone { rank: 0 });
    };
    let outcome = boot(collective, local, &orders).and_then(|worker| match worker {
        Some(mut worker) => {
            first.send(&Answer::Booted).map_err(|error| error.to_string())?;
            serve(&mut worker, &orders, &mut first)
        }
        None => Ok(()),
    });
    outcome.map_err(|reason| {
        let _ = first.send(&Answer::Failed(reason.clone())); // it may have ended first
        RankError::Failed { rank, reason }
    })
}

/// Loads the model as ordered; `None` if the first rank ends before.
fn boot(
    collective: &Arc<dyn Collective>,
    local: Local,
    orders: &Receiver<Arrival<Order>>,
) -> Result<Option<ModelWorker>, String> {
    let Ok((_, Ok(order))) = orders.recv() else {
        return Ok(None);
    };
    let Order::Boot { config, checkpoint } = order else {
        return Err(format!("expected the order to boot, got {order:?}"));
    };
    let mut config = from_json(&config).map_err(|error| error.to_string())?;
    local.adapt(&mut config);
    let checkpoint = checkpoint.map(|dir| read_checkpoint(&dir)).transpose()?;
    let (worker, _) = ModelWorker::build(collective.clone(), &config, checkpoint.as_ref(), Arc::default())?;
    Ok(Some(worker))
}

fn read_checkpoint(dir: &Path) -> Result<Checkpoint, String> {
    Checkpoint::find(dir).map_err(|error| {
        format!("{error}\nhint: the experiment directory must be the same on the machines of all ranks")
    })
}

/// Does what is ordered, and samples in between, until the first rank ends.
pub(super) fn serve(
    worker: &mut impl Worker,
    orders: &Receiver<Arrival<Order>>,
    first: &mut Link,
) -> Result<(), String> {
    let mut running: BTreeMap<u64, UnboundedReceiver<SampleEvent>> = BTreeMap::new();
    loop {
        let order = match worker.is_idle() && running.is_empty() {
            true => orders.recv().map_err(|_| TryRecvError::Disconnected),
            false => orders.try_recv(),
        };
        match order {
            Ok((_, Ok(order))) => obey(worker, order, &mut running)?,
            Ok((_, Err(RankError::Gone { .. }))) | Err(TryRecvError::Disconnected) => return Ok(()),
            Ok((_, Err(error))) => return Err(error.to_string()),
            Err(TryRecvError::Empty) => {
                worker.step()?;
            }
        }
        let events = drain(&mut running);
        if !events.is_empty() {
            let load = worker.load();
            match first.send(&Answer::Events { events, load }) {
                // Where the first rank has ended, its last orders come before its end.
                Ok(()) | Err(RankError::Gone { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

fn obey(
    worker: &mut impl Worker,
    order: Order,
    running: &mut BTreeMap<u64, UnboundedReceiver<SampleEvent>>,
) -> Result<(), String> {
    match order {
        Order::Boot { .. } => Err("ordered to boot a second time".into()),
        Order::Sample {
            id,
            group,
            prompt,
            params,
            forced_tokens,
        } => {
            let (events, receiver) = unbounded_channel();
            running.insert(id, receiver);
            worker.submit(SampleRequest {
                id,
                group,
                prompt,
                params,
                forced_tokens,
                // Those stay on the first rank.
                grammar: None,
                // The first rank looks at the tokens and cancels.
                stop: None,
                events,
            });
            Ok(())
        }
        Order::Cancel { id } => {
            running.remove(&id);
            Ok(())
        }
        Order::Update { global_step, episodes } => {
            running.clear();
            worker.update(global_step, &episodes).map(drop)
        }
        Order::Save { dir } => {
            // Where the first rank refuses to save, so does this one, and for the same reason.
            let _ = worker.save(&dir);
            Ok(())
        }
    }
}

/// Takes the events that have happened; requests that ended are removed.
fn drain(running: &mut BTreeMap<u64, UnboundedReceiver<SampleEvent>>) -> Vec<(u64, SampleEvent)> {
    let mut events = vec![];
    running.retain(|id, receiver| {
        while let Ok(event) = receiver.try_recv() {
            let last = event.is_last();
            events.push((*id, event));
            if last {
                return false;
            }
        }
        true
    });
    events
}
