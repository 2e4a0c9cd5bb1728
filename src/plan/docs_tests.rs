//! The tables of docs/gpu.md and docs/scale.md, which are written from the formulas.

use std::sync::{Mutex, PoisonError};

use super::report::{gb, seconds};
use super::{Lengths, Machines, Memory, device, plan, shapes};
use crate::config::Ajet;

/// Tests run at the same time, and several write the same page.
static WRITING: Mutex<()> = Mutex::new(());

const COMMAND: &str = "UPDATE_DOCS=1 cargo test --lib plan::docs";

/// Checks the text between the markers of a table on a page, or writes it with `UPDATE_DOCS=1`.
fn check(page: &str, table: &str, expected: &str) {
    let _alone = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    let path = format!("{}/docs/{page}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap();
    let begin = format!("<!-- {table}: written by `{COMMAND}` -->\n");
    let end = format!("<!-- end of {table} -->");
    let (before, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("{page} has no {begin}"));
    let (found, after) = rest.split_once(&end).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(&path, format!("{before}{begin}{expected}{end}{after}")).unwrap();
    }
    assert_eq!(found, expected, "run {COMMAND}");
}

fn h100s(per_node: usize, nodes: usize, network: f64) -> Machines {
    Machines {
        device: device::gpu("h100").unwrap(),
        per_node,
        nodes,
        network,
    }
}

/// 32 × 8 episodes of 1,000 and up to 3,000 tokens without KL term, micro-batches of 16,384 tokens with recompute.
fn ajet(lora_rank: usize) -> Ajet {
    let mut ajet = Ajet::default();
    (ajet.data.max_prompt_length, ajet.data.max_response_length) = (1000, 3000);
    ajet.rollout.num_repeat = 8;
    ajet.rollout.max_env_worker = 256;
    ajet.rollout.max_num_seqs = 256;
    ajet.trainer_common.use_kl_loss = false;
    ajet.trainer_common.recompute = crate::config::schema::Recompute::On;
    ajet.lora.lora_rank = lora_rank;
    ajet
}

const LENGTHS: Lengths = Lengths {
    prompt: 1000,
    response: 2000,
};

#[test]
fn the_memory_table() {
    let mut table = "| model | trained | weights | optimizer | gradients | activations | an update | card | 1,000 cached tokens |\n\
                     |---|---|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_string();
    for model in ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b"] {
        for (what, kl, lora_rank) in [
            ("all, with KL", true, 0),
            ("all, without KL", false, 0),
            ("LoRA of rank 16", true, 16),
        ] {
            let mut ajet = ajet(lora_rank);
            ajet.trainer_common.use_kl_loss = kl;
            let m = Memory::new(&shapes::known(model).unwrap().unwrap(), &ajet, &h100s(1, 1, 0.0));
            let card = [24.0, 48.0, 80.0, 141.0, 180.0]
                .into_iter()
                .find(|card| card * 1e9 * 0.95 > m.update());
            table += &format!(
                "| {} | {what} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {} | {:.0} MB |\n",
                model.replace("qwen", "Qwen").replace('b', "B"),
                (m.weights + m.reference) / 1e9,
                m.optimizer / 1e9,
                m.gradients / 1e9,
                m.activations / 1e9,
                m.update() / 1e9,
                card.map_or("more than one".into(), |card| format!("{card:.0} GB")),
                1000.0 * m.cached_token / 1e6,
            );
        }
    }
    check("gpu.md", "memory table", &table);
}

#[test]
fn the_table_of_memory_by_ranks() {
    let mut table = "| model | trained | weights | gradients | activations | optimizer, 1 rank | 2 | 8 | 16 | update, 1 rank | 8 | \
                     sequences, 1 rank | 8 |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_string();
    for model in shapes::names().filter(|name| name.starts_with("qwen")) {
        for (what, lora_rank) in [("all", 0), ("LoRA 16", 16)] {
            let shape = shapes::known(model).unwrap().unwrap();
            let of = |ranks| Memory::new(&shape, &ajet(lora_rank), &h100s(ranks, 1, 0.0));
            let (one, eight) = (of(1), of(8));
            let update = |m: &Memory| match m.fits() {
                true => gb(m.update()),
                false => format!("**{}**", gb(m.update())),
            };
            table += &format!(
                "| {model} | {what} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
                gb(one.weights),
                gb(one.gradients),
                gb(one.activations),
                gb(one.optimizer),
                gb(of(2).optimizer),
                gb(eight.optimizer),
                gb(of(16).optimizer),
                update(&one),
                update(&eight),
                one.sequences(4000),
                eight.sequences(4000),
            );
        }
    }
    check("scale.md", "memory by ranks", &table);
}

#[test]
fn the_table_of_time_by_ranks_and_links() {
    let mut table =
        "| model | trained | ranks | between machines | sampling | update | exchange | step | 1 rank / this |\n\
                     |---|---|--:|--:|--:|--:|--:|--:|--:|\n"
            .to_string();
    for (model, what, lora_rank) in [
        ("qwen2.5-1.5b", "all", 0),
        ("qwen2.5-1.5b", "LoRA 16", 16),
        ("qwen2.5-7b", "LoRA 16", 16),
        ("qwen2.5-14b", "LoRA 16", 16),
    ] {
        let shape = shapes::known(model).unwrap().unwrap();
        let of = |machines: &Machines| plan(&shape, &ajet(lora_rank), machines, LENGTHS).time.unwrap();
        let alone = of(&h100s(1, 1, 0.0)).seconds();
        for (per_node, nodes, network) in [
            (1, 1, None),
            (2, 1, None),
            (8, 1, None),
            (8, 2, Some(1.25)),
            (8, 2, Some(12.5)),
            (8, 2, Some(50.0)),
        ] {
            let time = of(&h100s(per_node, nodes, network.unwrap_or(0.0) * 1e9));
            table += &format!(
                "| {model} | {what} | {} | {} | {} | {} | {} | {} | {:.1} |\n",
                per_node * nodes,
                network.map_or("–".into(), |network| format!("{:.0} Gbit/s", 8.0 * network)),
                seconds(time.prompts.seconds + time.answers.seconds),
                seconds(time.passes.seconds + time.optimizer.seconds),
                seconds(time.exchange.seconds),
                seconds(time.seconds()),
                alone / time.seconds(),
            );
        }
    }
    check("scale.md", "time by ranks", &table);
}

#[test]
fn the_table_of_devices() {
    let mut table = "| `--gpu` | memory, GB | bandwidth, GB/s | bf16, TFLOP/s | to the host, GB/s | source |\n\
                     |---|--:|--:|--:|--:|---|\n"
        .to_string();
    for (name, device) in device::gpus() {
        table += &format!(
            "| `{name}` | {:.0} | {:.0} | {:.0} | {:.0} | {} |\n",
            device.memory / 1e9,
            device.bandwidth / 1e9,
            device.flops / 1e12,
            device.host_link / 1e9,
            device.source,
        );
    }
    check("scale.md", "devices", &table);
}
