//! A plan as text for people.

use super::{Device, Machines, Memory, Plan, Time};

/// Share of the configured time below which that of other settings is worth a line.
const FASTER: f64 = 0.99;

/// Returns the whole report, with a name for the model.
pub fn report(name: &str, plan: &Plan) -> String {
    let ranks = plan.machines.ranks();
    let mut parts = vec![head(name, plan), memory(&plan.memory, ranks)];
    match &plan.time {
        Some(configured) => parts.push(time(configured, plan)),
        None => parts.push(what_lacks(plan)),
    }
    parts.push(settings(plan));
    match (&plan.time, &plan.advised) {
        (None, Some((advised_memory, advised_time))) => parts.push(format!(
            "with these settings:\n\n{}\n{}",
            memory(advised_memory, ranks),
            time(advised_time, plan)
        )),
        (Some(configured), Some((_, advised))) if advised.seconds() < FASTER * configured.seconds() => parts.push(
            format!("a step takes {} s with these settings\n", seconds(advised.seconds())),
        ),
        _ => {}
    }
    parts.join("\n")
}

fn head(name: &str, plan: &Plan) -> String {
    let Machines { device, nodes, .. } = &plan.machines;
    let ranks = plan.machines.ranks();
    let machines = match nodes {
        1 => "1 machine".into(),
        nodes => format!("{nodes} machines, {:.1} GB/s between them", plan.machines.network / 1e9),
    };
    let trained = match plan.trained == plan.parameters {
        true => "all of them trained".into(),
        false => format!("{} trained", count(plan.trained)),
    };
    format!(
        "model    {name}: {} parameters, {trained}\n\
         ranks    {ranks} on {machines}\n\
         device   {}\n\
         source   {}\n",
        count(plan.parameters),
        describe(device),
        device.source,
    )
}

/// Describes a device by its figures.
pub fn describe(device: &Device) -> String {
    format!(
        "{}: {:.0} GB, {:.0} GB/s, {:.1} TFLOP/s",
        device.name,
        device.memory / 1e9,
        device.bandwidth / 1e9,
        device.flops / 1e12
    )
}

fn memory(memory: &Memory, ranks: usize) -> String {
    let owned = match ranks {
        1 => "optimizer".into(),
        _ => format!("optimizer (of {} GB)", gb(memory.optimizer_alone)),
    };
    let recompute = if memory.recompute { ", layers recomputed" } else { "" };
    let activations = format!("activations ({} tokens{recompute})", memory.micro_batch);
    let cached = memory.cache_room.max(0.0);
    let lines = [
        ("weights", memory.weights, memory.weights),
        ("reference", memory.reference, memory.reference),
        ("packed weights", memory.packed, memory.packed),
        (&owned, memory.optimizer, memory.optimizer),
        ("gradients", 0.0, memory.gradients),
        (&activations, 0.0, memory.activations),
        ("KV cache", cached, 0.0),
        ("total", memory.resident() + cached, memory.update()),
        ("device", memory.capacity, memory.usable),
    ];
    let mut text = format!("{:52} {:>8} {:>8}\n", "memory of a rank, GB", "sampling", "update");
    let shown = lines.iter().filter(|(_, sampling, update)| sampling + update > 0.0);
    for (what, sampling, update) in shown {
        text += &format!("  {what:50} {:>8} {:>8}\n", or_dash(*sampling), or_dash(*update));
    }
    let sequence = memory.sequence(memory.longest);
    text += &format!(
        "  the cache holds {} sequences of {} tokens, {} GB each\n",
        memory.sequences(memory.longest),
        memory.longest,
        gb(sequence)
    );
    text
}

fn time(time: &Time, plan: &Plan) -> String {
    let reached = plan.machines.device.reached();
    let mut text = format!("{:52} {:>8}  bound by\n", "time of a step", "seconds");
    for (what, phase) in time.phases().iter().filter(|(_, phase)| phase.seconds > 0.0) {
        text += &format!("  {what:50} {:>8}  {}\n", seconds(phase.seconds), phase.binding.words());
    }
    text += &format!("  {:50} {:>8}\n", "total", seconds(time.seconds()));
    text += &format!(
        "  episodes of {} + {} tokens, {} at once on a rank, without the agents' own time\n",
        plan.lengths.prompt, plan.lengths.response, time.sequences
    );
    text += &format!(
        "  reached shares, {}: bandwidth {:.0} %, arithmetic {:.0} % in decoding, {:.0} % in prompts, {:.0} % in updates\n",
        if reached.measured {
            "measured"
        } else {
            "assumed, not measured"
        },
        100.0 * reached.bandwidth,
        100.0 * reached.decoding,
        100.0 * reached.prompts,
        100.0 * reached.training
    );
    text
}

/// Says what is missing and what would help.
fn what_lacks(plan: &Plan) -> String {
    let memory = &plan.memory;
    let mut text = String::from("does not fit:\n");
    let fixed = memory.weights + memory.reference + memory.packed;
    if memory.weights > memory.usable {
        text += &format!(
            "  the weights alone lack {} GB, and every rank holds all of them: more ranks do not help\n",
            gb(memory.weights - memory.usable)
        );
    } else if fixed > memory.usable {
        text += &format!("  weights and their copies lack {} GB\n", gb(fixed - memory.usable));
    }
    if memory.update_lacks() > 0.0 {
        text += &format!("  an update lacks {} GB\n", gb(memory.update_lacks()));
    }
    if memory.cache_lacks() > 0.0 {
        text += &format!(
            "  the cache lacks {} GB for one sequence of {} tokens\n",
            gb(memory.cache_lacks()),
            memory.longest
        );
    }
    text += "changes, each alone:\n";
    for remedy in &plan.advice.remedies {
        let verdict = if remedy.suffices { "fits" } else { "does not fit" };
        text += &format!("  {:50} {verdict}, update {} GB\n", remedy.what, gb(remedy.update));
    }
    text
}

fn settings(plan: &Plan) -> String {
    if !plan.advice.fits {
        return "no setting makes it fit\nhint: use a device with more memory, or a smaller model\n".into();
    }
    let start = match plan.machines.ranks() {
        1 => "ajet-swarm start".into(),
        _ => "ajet-swarm start --launcher \"mpirun -np {ranks}\"".to_owned(),
    };
    format!("settings\n{}\n{start}\n", plan.advice.yaml())
}

/// Writes a number of parameters in millions or billions.
fn count(parameters: usize) -> String {
    let millions = parameters as f64 / 1e6;
    match millions < 1000.0 {
        true => format!("{millions:.1} million"),
        false => format!("{:.2} billion", millions / 1000.0),
    }
}

/// Writes bytes in GB.
pub fn gb(bytes: f64) -> String {
    let gb = bytes / 1e9;
    if gb < 0.1 {
        format!("{gb:.3}")
    } else {
        format!("{gb:.1}")
    }
}

fn or_dash(bytes: f64) -> String {
    if bytes > 0.0 { gb(bytes) } else { "–".into() }
}

/// Writes seconds with three digits.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{s:.3}"),
        s if s < 10.0 => format!("{s:.2}"),
        s if s < 100.0 => format!("{s:.1}"),
        s => format!("{s:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Lengths, device, plan, shapes};
    use super::*;
    use crate::config::Ajet;

    fn of(model: &str, gpu: &str, nodes: usize) -> String {
        let machines = Machines {
            device: device::gpu(gpu).unwrap(),
            per_node: 8,
            nodes,
            network: 12.5e9,
        };
        let mut ajet = Ajet::default();
        (ajet.data.max_prompt_length, ajet.data.max_response_length) = (1000, 3000);
        let lengths = Lengths {
            prompt: 1000,
            response: 2000,
        };
        report(
            model,
            &plan(&shapes::known(model).unwrap().unwrap(), &ajet, &machines, lengths),
        )
    }

    #[test]
    fn reports() {
        let texts = [
            of("qwen2.5-1.5b", "h100", 1),
            of("qwen2.5-7b", "a100", 2),
            of("llama-3.1-70b", "h100", 1),
        ];
        insta::assert_snapshot!(texts.join("\n=====\n\n"));
    }
}
