//! How long operations continue after `maxTimeMS`: `cargo run --release -p nilometer-bench --bin interrupts`.
//!
//! Each line is a command with work for minutes in one document, or in one group, and a limit of 50 ms; it shows the time
//! from the limit to the answer, the longest of three runs.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::time::{Duration, Instant};

use nilometer::{ClientSession, Database, Request};
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const LIMIT_MS: u64 = 50;

const RUNS: usize = 3;

/// Documents of the collection with many.
const MANY: i32 = 200_000;

struct Client {
    database: Database,
    session: ClientSession,
}

impl Client {
    fn run(&mut self, command: &Document) -> Document {
        let mut body = DocumentBuilder::new();
        for element in command.iter() {
            body.append_element(element);
        }
        body.append("$db", "test");
        let request = Request::new(body.finish());
        self.database.run_command(&mut self.session, &request)
    }

    /// Runs a command with the limit and prints by how much it was exceeded.
    fn measure(&mut self, name: &str, command: &Document) -> Duration {
        let mut limited = DocumentBuilder::new();
        for element in command.iter() {
            limited.append_element(element);
        }
        limited.append("maxTimeMS", i64::try_from(LIMIT_MS).unwrap_or(0));
        let limited = limited.finish();
        let mut longest = Duration::ZERO;
        let mut outcome = String::new();
        for _ in 0..RUNS {
            let began = Instant::now();
            let reply = self.run(&limited);
            let over = began
                .elapsed()
                .saturating_sub(Duration::from_millis(LIMIT_MS));
            longest = longest.max(over);
            let errors = reply.get("writeErrors").as_array();
            let first = errors.and_then(|errors| errors.get(0).as_document());
            let code = first.map_or(reply.get("code"), |error| error.get("code"));
            outcome = match code.as_exact_i64() {
                Some(50) => String::new(),
                other => format!("   code {other:?}"),
            };
        }
        println!("{name:<52} {longest:>10.2?}{outcome}");
        longest
    }
}

fn of(pipeline: Value, collection: &str) -> Document {
    doc! { "aggregate": collection, "pipeline": pipeline, "cursor": doc! {} }
}

// long function: the list of cases
fn main() {
    let mut client = Client {
        database: Database::in_memory().expect("a database"),
        session: ClientSession::embedded(),
    };
    let list: Vec<Value> = (0..100_000).map(Value::from).collect();
    let text = "ab".repeat(2_000_000);
    let one = doc! { "_id": 1, "n": 100_000, "s": text, "list": list };
    client.run(&doc! { "insert": "c", "documents": array![one] });
    let many: Vec<Value> = (0..MANY)
        .map(|at| doc! { "v": (at * 7919) % 200_003, "s": "x".repeat(40) }.into())
        .collect();
    for some in many.chunks(50_000) {
        client.run(&doc! { "insert": "many", "documents": some.to_vec() });
    }
    let range = || doc! { "$range": array![0, "$n"] };
    let nested =
        |inner: Value| Value::from(doc! { "$map": doc! { "input": range(), "in": inner } });
    let sum = || Value::from(doc! { "$sum": range() });
    let set = |value: Value| array![doc! { "$set": doc! { "x": value } }];
    let find =
        |pattern: &str| doc! { "find": "c", "filter": doc! { "s": doc! { "$regex": pattern } } };
    let growing = || doc! { "documents": array!["unbounded", "current"] };
    let windows = |output: Document| {
        let output = doc! { "r": output };
        array![doc! { "$setWindowFields": doc! { "sortBy": doc! { "v": 1 }, "output": output } }]
    };
    let top = doc! { "sortBy": doc! { "v": -1 }, "output": "$s", "n": 5000 };
    let add = doc! { "list": doc! { "$each": (0..100_000).map(|at| Value::from(-at)).collect::<Vec<_>>() } };
    let cases = [
        ("$map of $sum of $range", of(set(nested(sum())), "c")),
        ("$reduce", of(set(nested(doc! { "$reduce": doc! { "input": "$list", "initialValue": 0, "in": doc! { "$add": array!["$$value", "$$this"] } } }.into())), "c")),
        ("$filter", of(set(nested(doc! { "$size": doc! { "$filter": doc! { "input": "$list", "cond": doc! { "$gt": array!["$$this", "$n"] } } } }.into())), "c")),
        ("$sortArray", of(set(nested(doc! { "$size": doc! { "$sortArray": doc! { "input": "$list", "sortBy": -1 } } }.into())), "c")),
        ("$setUnion", of(set(nested(doc! { "$size": doc! { "$setUnion": array!["$list", "$list"] } }.into())), "c")),
        ("$toUpper of 4 MB", of(set(nested(doc! { "$strLenBytes": doc! { "$toUpper": "$s" } }.into())), "c")),
        ("$indexOfBytes in 4 MB", of(set(nested(doc! { "$indexOfBytes": array!["$s", "abc"] }.into())), "c")),
        ("$regexFindAll in 4 MB", of(set(nested(doc! { "$size": doc! { "$regexFindAll": doc! { "input": "$s", "regex": "a*b|a" } } }.into())), "c")),
        ("a linear pattern of 20,000 states, 4 MB", find("(?:a|b|[ab]d){20000}z")),
        ("a pattern with look-ahead, 4 MB", find("(?=(?:a|b|ab)+c)z")),
        ("a pattern with a back reference, 4 MB", find(r"^(?:(.*)\1)*c")),
        ("$expr in a filter", doc! { "find": "c", "filter": doc! { "$expr": doc! { "$lt": array![doc! { "$sum": nested(sum()) }, 0] } } }),
        ("update by a pipeline", doc! { "update": "c", "updates": array![doc! { "q": doc! {}, "u": set(nested(sum())) }] }),
        ("$addToSet of 100,000", doc! { "update": "c", "updates": array![doc! { "q": doc! {}, "u": doc! { "$addToSet": add } }] }),
        ("$topN of a group", of(array![doc! { "$group": doc! { "_id": Value::Null, "r": doc! { "$topN": top.clone() } } }], "many")),
        ("$push over a growing window", of(windows(doc! { "$push": "$s", "window": growing() }), "many")),
        ("$addToSet over a growing window", of(windows(doc! { "$addToSet": "$s", "window": growing() }), "many")),
        ("$topN over a growing window", of(windows(doc! { "$topN": top, "window": growing() }), "many")),
        ("$lookup without an index", of(array![doc! { "$lookup": doc! { "from": "many", "as": "r", "let": doc! { "v": "$v" }, "pipeline": array![doc! { "$match": doc! { "$expr": doc! { "$eq": array!["$v", "$$v"] } } }] } }], "many")),
    ];
    let mut longest = Duration::ZERO;
    for (name, command) in &cases {
        longest = longest.max(client.measure(name, command));
    }
    println!("{:<52} {longest:>10.2?}", "the longest");
}
