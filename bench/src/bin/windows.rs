//! Speed of window functions over a time series and of filling gaps: in process, on one core. `cargo run --release -p
//! nilometer-bench --bin windows [HOSTS] [MEASUREMENTS_PER_HOST] [WORD]`; without arguments a million measurements of
//! 100 hosts, ten whole numbers and ten tags each, as TSBS has them. With a word, only questions whose name holds it
//! are asked.
//!
//! Each stage is followed by a `$group` into one document or a selective `$match`, so that the answer costs nothing.
//! Each query runs with every rewrite, and without those for it: on rows, sorted where necessary.

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

#[path = "../data/names.rs"]
mod names;
#[path = "../processor.rs"]
mod processor;
#[path = "../settled.rs"]
mod settled;

use settled::Client;

/// The allocator of the server: decision 0012.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measured runs of each query on rows and on blocks, after as many warm-up runs.
const ROUNDS: (usize, usize) = (2, 10);

/// Limit of documents that `$densify` creates.
const MADE_MAX: i64 = 10_000_000;

/// Returns a window function over `usage_user`.
fn over(name: &str, window: Option<Document>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, "$usage_user");
    if let Some(window) = window {
        out.append("window", window);
    }
    out.finish()
}

/// Returns `{name: argument}`.
fn named(name: &str, argument: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, argument);
    out.finish()
}

/// Returns a derivative or integral over the last ten minutes.
fn by_the_minute(name: &str) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, doc! {"input": "$usage_user", "unit": "minute"});
    out.append("window", minutes());
    out.finish()
}

fn minutes() -> Document {
    doc! {"range": array![-10, 0], "unit": "minute"}
}

/// Returns the measured functions.
fn functions() -> Vec<(&'static str, Document)> {
    let ten = || Some(doc! {"documents": array![-9, 0]});
    let so_far = || Some(doc! {"documents": array!["unbounded", "current"]});
    vec![
        ("average over 10 documents", over("$avg", ten())),
        ("average over 10 minutes", over("$avg", Some(minutes()))),
        ("maximum over 10 minutes", over("$max", Some(minutes()))),
        ("deviation over 10 documents", over("$stdDevPop", ten())),
        ("sum so far", over("$sum", so_far())),
        ("average of all", over("$avg", None)),
        (
            "`$derivative` over 10 minutes",
            by_the_minute("$derivative"),
        ),
        ("`$integral` over 10 minutes", by_the_minute("$integral")),
        (
            "`$expMovingAvg`",
            named("$expMovingAvg", doc! {"input": "$usage_user", "N": 10}),
        ),
        (
            "`$shift` by one",
            named("$shift", doc! {"output": "$usage_user", "by": -1}),
        ),
        ("`$rank`", named("$rank", doc! {})),
        ("`$documentNumber`", named("$documentNumber", doc! {})),
        ("`$locf`", named("$locf", "$usage_user")),
        ("`$linearFill`", named("$linearFill", "$usage_user")),
    ]
}

fn windows(partition: &str, output: Document) -> Value {
    doc! {"$setWindowFields": doc! {
        "partitionBy": partition, "sortBy": doc! {"time": 1}, "output": doc! {"x": output},
    }}
    .into()
}

fn greatest() -> Value {
    let group = doc! {"_id": Value::Null, "n": doc! {"$sum": 1}, "x": doc! {"$max": "$x"}};
    doc! {"$group": group}.into()
}

/// Returns every query: its name and its pipeline.
fn questions() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (name, output) in functions() {
        let pipeline = array![windows("$tags.hostname", output), greatest()];
        all.push((name.to_owned(), pipeline));
    }
    let average = || over("$avg", Some(doc! {"documents": array![-9, 0]}));
    let few = doc! {"$match": doc! {"x": doc! {"$gt": 99}, "usage_user": doc! {"$gt": 99}}};
    let shown = doc! {"$project": doc! {"_id": 0, "time": 1, "x": 1}};
    let pipeline = array![windows("$tags", average()), few, shown];
    all.push((
        "average over 10 documents, by all tags, `$match`, `$project`".to_owned(),
        pipeline,
    ));
    let best = array![
        windows("$tags.hostname", average()),
        doc! {"$sort": doc! {"x": -1}},
        doc! {"$limit": 10},
    ];
    all.push(("average over 10 documents, ten highest".to_owned(), best));
    for (name, bounds) in [("partition", "partition"), ("full", "full")] {
        let densify: Value = doc! {"$densify": doc! {
            "field": "time", "partitionByFields": array!["tags.hostname"],
            "range": doc! {"step": 5, "unit": "second", "bounds": bounds},
        }}
        .into();
        let count: Value = doc! {"$count": "n"}.into();
        all.push((
            format!("`$densify`, bounds {name}"),
            array![densify.clone(), count],
        ));
        let fill: Value = doc! {"$fill": doc! {
            "partitionBy": "$tags.hostname", "sortBy": doc! {"time": 1},
            "output": doc! {"usage_user": doc! {"method": "linear"}},
        }}
        .into();
        let total = doc! {"_id": Value::Null, "x": doc! {"$max": "$usage_user"}};
        all.push((
            format!("… and `$fill`, bounds {name}"),
            array![densify, fill, doc! {"$group": total}],
        ));
    }
    all
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|a| a.parse::<i64>().ok());
    let hosts = number(0).unwrap_or(100);
    let per_host = number(1).unwrap_or(10_000);
    let word = arguments.get(2).map_or("", String::as_str);
    let rows = hosts * per_host;
    let mut client = Client::new();
    client.load(usize::try_from(hosts).unwrap_or(1), per_host);
    client.set("nilometerQueryThreads", 1);
    client.set("internalQueryMaxAllowedDensifyDocs", MADE_MAX);
    println!("{rows} measurements of {hosts} hosts; milliseconds of the processor");
    println!("| question | on rows | now | ns a measurement |");
    println!("|---|---:|---:|---:|");
    for (name, pipeline) in questions() {
        if !name.contains(word) {
            continue;
        }
        let command = doc! {
            "aggregate": "cpu", "pipeline": pipeline, "cursor": doc! {"batchSize": 1_000_000},
            "allowDiskUse": true,
        };
        let mut ask = |left_out: Value, rounds: usize| {
            client.set("internalNilometerDisabledRules", left_out);
            let (_, used, _, _) = client.measure(&command, rounds);
            used * 1e3
        };
        let left_out = array![
            "WindowsOverBlocks",
            "DensifyOverBuckets",
            "WindowsBehindDensify",
        ];
        let on_rows = ask(left_out, ROUNDS.0);
        let on_blocks = ask(array![], ROUNDS.1);
        let each = on_blocks * 1e6 / rows as f64;
        println!("| {name} | {on_rows:.0} | {on_blocks:.0} | {each:.0} |");
    }
}
