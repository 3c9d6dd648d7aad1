//! Plays one large job on many nodes in virtual time, and prints what it asked of queues and store, and what its roles
//! needed, as one JSON object.
//!
//! `cargo run --release --example size <nodes> <mini-batches>`

use std::time::Duration;

use engine::cost::LIST_PRICES;
use simulation::{CountedMemory, LATENCY, Needed, Size, Sized, run_size};

const RUN_TIME: Duration = Duration::from_secs(1);

#[global_allocator]
static MEMORY: CountedMemory = CountedMemory;

fn main() {
    let numbers: Vec<u64> =
        std::env::args().skip(1).filter_map(|number| number.parse().ok()).collect();
    let [nodes, mini_batches] = numbers[..] else {
        eprintln!("usage: size <nodes> <mini-batches>");
        std::process::exit(2);
    };
    match run_size(Size { nodes, mini_batches, run_time: RUN_TIME, meter: CountedMemory::METER }) {
        Ok(sized) => println!("{}", document(nodes, mini_batches, &sized)),
        Err(violation) => {
            eprintln!("{violation}");
            std::process::exit(1);
        }
    }
}

fn document(nodes: u64, mini_batches: u64, sized: &Sized) -> serde_json::Value {
    let requests = &sized.requests;
    let puts = requests.puts + requests.lists;
    let dollars = requests.sqs() as f64 * LIST_PRICES.sqs_million / 1e6
        + puts as f64 * LIST_PRICES.put_thousand / 1e3
        + requests.gets as f64 * LIST_PRICES.get_thousand / 1e3;
    serde_json::json!({
        "nodes": nodes,
        "mini_batches": mini_batches,
        "run_seconds": RUN_TIME.as_secs_f64(),
        "seconds": sized.time.as_secs_f64(),
        "sqs": requests.sqs(),
        "sends": requests.sends,
        "receives": requests.receives,
        "deletes": requests.deletes,
        "extensions": requests.extensions,
        "puts": puts,
        "gets": requests.gets,
        "dollars": dollars,
        "messages": requests.messages,
        "message_bytes": requests.message_bytes,
        "deliveries": requests.deliveries,
        "ledger_bytes": sized.ledger_bytes,
        "segments": sized.segments,
        "plan_objects": sized.plan_objects,
        "restart": needed(&sized.restart),
        "status": needed(&sized.status),
        "retry": needed(&sized.retry),
        "latency_milliseconds": LATENCY,
        "in_flight_max": sized.in_flight_max,
        "message_bytes_max": requests.message_bytes_max,
        "sqs_a_second_max": requests.sqs_a_second_max,
        "puts_a_second_max": requests.puts_a_second_max,
        "gets_a_second_max": requests.gets_a_second_max,
    })
}

fn needed(needed: &Needed) -> serde_json::Value {
    serde_json::json!({
        "requests": needed.requests.all(),
        "gets": needed.requests.gets,
        "seconds": needed.time.as_secs_f64(),
        "memory": needed.memory,
    })
}
