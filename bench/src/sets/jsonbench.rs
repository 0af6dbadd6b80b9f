//! A look-alike of JSONBench: events of a social network in the shape of Bluesky's public stream, five questions.
//!
//! ```text
//! {did, time_us, kind: "commit", commit: {rev, operation, collection, rkey, record: {…}, cid}}
//! {did, time_us, kind: "identity" | "account", identity | account: {did, seq, time, …}}
//! ```
//!
//! The names, the nesting and the length of the fields are those of the stream; users, texts and shares of the kinds are
//! drawn. Three layouts: an ordinary collection; the same with the index that the questions can use; a time series,
//! where `time` is `time_us` as a date and `event` the metadata: kind, operation and collection.

use std::collections::{BTreeMap, HashMap, HashSet};

use nilometer_bson::{Document, DocumentBuilder, Value, doc, extjson};

use super::document_set::{Collection, DocumentSet, Layout, Receiver};
use super::questions::{self, Question};
use super::{SetOptions, run_command_line};
use crate::data::Random;
use crate::target::Outcome;

/// The questions.
const QUESTIONS: &str = include_str!("../../sets/jsonbench.json");

/// Where the stream starts: 2024-11-21T16:00:00Z.
const START_US: i64 = 1_732_204_800_000_000;
/// Largest distance between two events; half of it on average.
const GAP_US: u64 = 8_000;
/// Events for each user, on average.
const EVENTS_PER_USER: u64 = 5;

/// Streams of random numbers.
mod stream {
    pub(super) const EVENTS: u64 = 1_000;
    pub(super) const USERS: u64 = 1_001;
    pub(super) const RECORDS: u64 = 1_002;
}

const LIKE: &str = "app.bsky.feed.like";
const POST: &str = "app.bsky.feed.post";
const REPOST: &str = "app.bsky.feed.repost";
const FOLLOW: &str = "app.bsky.graph.follow";
const BLOCK: &str = "app.bsky.graph.block";
const LIST_ITEM: &str = "app.bsky.graph.listitem";
const PROFILE: &str = "app.bsky.actor.profile";

/// The collections of records, each with its share of a thousand.
const SHARES: [(&str, u64); 12] = [
    (LIKE, 449),
    (FOLLOW, 248),
    (POST, 155),
    (REPOST, 85),
    (BLOCK, 27),
    (PROFILE, 14),
    (LIST_ITEM, 9),
    ("app.bsky.feed.threadgate", 5),
    ("app.bsky.feed.postgate", 3),
    ("app.bsky.graph.starterpack", 2),
    ("app.bsky.graph.list", 2),
    ("chat.bsky.actor.declaration", 1),
];

const WORDS: [&str; 40] = [
    "the", "a", "to", "and", "of", "is", "it", "that", "for", "on", "you", "this", "with", "was",
    "today", "people", "just", "time", "good", "new", "river", "morning", "coffee", "again",
    "never", "music", "photo", "weather", "thanks", "reading", "game", "finally", "tomorrow",
    "cats", "weekend", "garden", "question", "launch", "sunset", "bicycle",
];
const LANGUAGES: [&str; 6] = ["en", "en", "en", "pt", "ja", "de"];

/// Runs the set from the command line. False if an answer was wrong.
pub fn run(arguments: &[String], print: &mut dyn FnMut(&str)) -> Outcome<bool> {
    let title = "jsonbench: a look-alike of JSONBench, events of a social network";
    let size = ("--events", 1_000_000);
    run_command_line(
        arguments,
        (title, size),
        |options| Box::new(Events::new(options)),
        print,
    )
}

/// The drawn part of an event that the answers depend on.
#[derive(Clone, Copy)]
struct Event {
    user: u64,
    time_us: i64,
    kind: &'static str,
    operation: &'static str,
    collection: &'static str,
    /// Seed of everything else.
    seed: u64,
}

/// The set.
pub(crate) struct Events {
    count: u64,
    seed: u64,
    answers: HashMap<&'static str, Vec<Document>>,
}

impl Events {
    pub(crate) fn new(options: &SetOptions) -> Self {
        let mut set = Self {
            count: options.size,
            seed: options.common.seed,
            answers: HashMap::new(),
        };
        set.answers = answers(&set);
        set
    }

    /// Draws the events in the order of time.
    fn events(&self) -> impl Iterator<Item = Event> + use<> {
        let mut random = Random::new(self.seed, stream::EVENTS);
        let users = (self.count / EVENTS_PER_USER).max(3);
        let mut time_us = START_US;
        (0..self.count).map(move |_| {
            time_us += 1 + random.below(GAP_US) as i64;
            // Few users write most events.
            let rank = random.unit();
            let user = (rank * rank * rank * users as f64) as u64;
            let (kind, operation, collection) = match random.below(1_000) {
                0..4 => ("identity", "", ""),
                4..8 => ("account", "", ""),
                _ => draw_commit(&mut random),
            };
            Event {
                user,
                time_us,
                kind,
                operation,
                collection,
                seed: random.below(u64::MAX),
            }
        })
    }

    fn user_name(&self, user: u64) -> String {
        let mut random = Random::new(self.seed ^ user, stream::USERS);
        format!("did:plc:{}", base32(&mut random, 24))
    }
}

fn draw_commit(random: &mut Random) -> (&'static str, &'static str, &'static str) {
    let mut at = random.below(1_000);
    let mut collection = LIKE;
    for (name, share) in SHARES {
        collection = name;
        if at < share {
            break;
        }
        at -= share;
    }
    let operation = match random.below(100) {
        0..5 => "delete",
        5..55 if collection == PROFILE => "update",
        _ => "create",
    };
    ("commit", operation, collection)
}

/// Returns `length` characters of the base-32 alphabet of identifiers.
fn base32(random: &mut Random, length: usize) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    (0..length)
        .map(|_| char::from(*random.pick(ALPHABET)))
        .collect()
}

impl DocumentSet for Events {
    fn name(&self) -> &'static str {
        "jsonbench"
    }

    fn layouts(&self) -> Vec<Layout> {
        let ordinary = || Collection::ordinary("events");
        let index = doc! {
            "kind": 1, "commit.operation": 1, "commit.collection": 1, "did": 1, "time_us": 1,
        };
        let series = Collection {
            timeseries: Some(doc! { "timeField": "time", "metaField": "event" }),
            ..ordinary()
        };
        vec![
            Layout {
                name: "ordinary",
                collections: vec![ordinary()],
            },
            Layout {
                name: "indexed",
                collections: vec![ordinary().with_index(index)],
            },
            Layout {
                name: "time_series",
                collections: vec![series],
            },
        ]
    }

    fn generate(&self, layout: &Layout, _: &str, receive: &mut Receiver<'_>) -> Outcome {
        let is_series = layout
            .collections
            .iter()
            .any(|collection| collection.timeseries.is_some());
        for event in self.events() {
            receive(&document(self, event, is_series))?;
        }
        Ok(())
    }

    fn questions(&self, layout: &str) -> Outcome<Vec<Question>> {
        questions::parse(QUESTIONS, layout)
    }

    fn answer(&self, question: &str) -> Option<Vec<Document>> {
        // Two spellings of one question have one answer.
        let name = question.split('-').next().unwrap_or(question);
        self.answers.get(name).cloned()
    }
}

/// Builds the document of an event.
fn document(set: &Events, event: Event, is_series: bool) -> Document {
    let mut random = Random::new(event.seed, stream::RECORDS);
    let did = set.user_name(event.user);
    let mut out = DocumentBuilder::with_capacity(768);
    if is_series {
        out.append("time", Value::DateTime(event.time_us / 1_000));
        out.begin_document("event");
        out.append("kind", event.kind);
        if event.kind == "commit" {
            out.append("operation", event.operation);
            out.append("collection", event.collection);
        }
        out.end();
    }
    out.append("did", did.as_str());
    out.append("time_us", Value::Int64(event.time_us));
    if !is_series {
        out.append("kind", event.kind);
    }
    let time = extjson::format_date(event.time_us / 1_000).unwrap_or_default();
    if event.kind == "commit" {
        out.begin_document("commit");
        append_commit(&mut out, set, event, &time, is_series, &mut random);
        out.end();
    } else {
        out.begin_document(event.kind);
        if event.kind == "account" {
            out.append("active", random.below(10) > 0);
        } else {
            let handle = format!("{}.bsky.social", base32(&mut random, 9));
            out.append("handle", handle.as_str());
        }
        out.append("did", did.as_str());
        let sequence = (event.time_us - START_US) / 900 + 3_900_000_000;
        out.append("seq", Value::Int64(sequence));
        out.append("time", time.as_str());
        out.end();
    }
    out.finish()
}

fn append_commit(
    out: &mut DocumentBuilder,
    set: &Events,
    event: Event,
    time: &str,
    is_series: bool,
    random: &mut Random,
) {
    out.append("rev", base32(random, 13).as_str());
    if !is_series {
        out.append("operation", event.operation);
        out.append("collection", event.collection);
    }
    out.append("rkey", base32(random, 13).as_str());
    if event.operation == "delete" {
        return;
    }
    out.begin_document("record");
    out.append("$type", event.collection);
    out.append("createdAt", time);
    match event.collection {
        LIKE | REPOST => {
            out.begin_document("subject");
            append_reference(out, set, random);
            out.end();
        }
        FOLLOW | BLOCK => {
            let subject = other_user(set, random);
            out.append("subject", subject.as_str());
        }
        POST => append_post(out, set, random),
        PROFILE => {
            out.append("displayName", sentence(random, 2).as_str());
            out.append("description", sentence(random, 12).as_str());
        }
        _ => {
            let subject = other_user(set, random);
            let list = format!("at://{subject}/app.bsky.graph.list/{}", base32(random, 13));
            out.append("subject", subject.as_str());
            out.append("list", list.as_str());
        }
    }
    out.end();
    let cid = format!("bafyrei{}", base32(random, 52));
    out.append("cid", cid.as_str());
}

fn append_post(out: &mut DocumentBuilder, set: &Events, random: &mut Random) {
    let languages = vec![Value::from(*random.pick(&LANGUAGES))];
    out.append("langs", Value::from(languages));
    if random.below(2) == 0 {
        out.begin_document("reply");
        for name in ["parent", "root"] {
            out.begin_document(name);
            append_reference(out, set, random);
            out.end();
        }
        out.end();
    }
    let words = 3 + random.below(38) as usize;
    out.append("text", sentence(random, words).as_str());
}

/// Appends the address and the hash of a post.
fn append_reference(out: &mut DocumentBuilder, set: &Events, random: &mut Random) {
    let cid = format!("bafyrei{}", base32(random, 52));
    out.append("cid", cid.as_str());
    let author = other_user(set, random);
    let address = format!("at://{author}/{POST}/{}", base32(random, 13));
    out.append("uri", address.as_str());
}

fn other_user(set: &Events, random: &mut Random) -> String {
    let users = (set.count / EVENTS_PER_USER).max(3);
    set.user_name(random.below(users))
}

fn sentence(random: &mut Random, words: usize) -> String {
    let words: Vec<&str> = (0..words).map(|_| *random.pick(&WORDS)).collect();
    words.join(" ")
}

/// What the answers need to know about the events.
#[derive(Default)]
struct Tally {
    all: BTreeMap<&'static str, u64>,
    /// Count and users of created records.
    created: BTreeMap<&'static str, (u64, HashSet<u64>)>,
    by_hour: BTreeMap<(i64, &'static str), u64>,
    /// First and last post of each user.
    posts: HashMap<u64, (i64, i64)>,
}

/// Computes the answers to all questions.
fn answers(set: &Events) -> HashMap<&'static str, Vec<Document>> {
    let mut tally = Tally::default();
    for event in set.events() {
        *tally.all.entry(event.collection).or_default() += 1;
        if event.operation != "create" {
            continue;
        }
        let (count, users) = tally.created.entry(event.collection).or_default();
        *count += 1;
        users.insert(event.user);
        if [POST, REPOST, LIKE].contains(&event.collection) {
            let hour = event.time_us.div_euclid(3_600_000_000).rem_euclid(24);
            *tally.by_hour.entry((hour, event.collection)).or_default() += 1;
        }
        if event.collection == POST {
            let (first, last) = tally
                .posts
                .entry(event.user)
                .or_insert((event.time_us, event.time_us));
            *first = event.time_us.min(*first);
            *last = event.time_us.max(*last);
        }
    }
    let mut all: Vec<_> = tally.all.iter().collect();
    all.sort_by_key(|(event, count)| (std::cmp::Reverse(**count), **event));
    let all = all.into_iter().map(|(event, count)| {
        let event = match *event {
            "" => Value::Null,
            name => Value::from(name),
        };
        doc! { "event": event, "count": *count as i64 }
    });
    let mut created: Vec<_> = tally.created.iter().collect();
    created.sort_by_key(|(event, (count, _))| (std::cmp::Reverse(*count), **event));
    let created = created.into_iter().map(|(event, (count, users))| {
        doc! { "event": *event, "count": *count as i64, "users": users.len() as i64 }
    });
    let by_hour = tally.by_hour.iter().map(
        |((hour, event), count)| doc! { "event": *event, "hour": *hour, "count": *count as i64 },
    );
    let first = |(first, _): (i64, i64)| first;
    let span = |(first, last): (i64, i64)| last - first;
    let earliest = best(set, &tally.posts, "first_us", |times| {
        (first(times), first(times))
    });
    let longest = best(set, &tally.posts, "span_us", |times| {
        (-span(times), span(times))
    });
    HashMap::from([
        ("q1", all.collect()),
        ("q2", created.collect()),
        ("q3", by_hour.collect()),
        ("q4", earliest),
        ("q5", longest),
    ])
}

/// Returns the three users with the least order, then name, and their value.
fn best(
    set: &Events,
    posts: &HashMap<u64, (i64, i64)>,
    field: &str,
    order_and_value: impl Fn((i64, i64)) -> (i64, i64),
) -> Vec<Document> {
    let mut all: Vec<(i64, String, i64)> = Vec::with_capacity(posts.len());
    let mut limit = i64::MAX;
    for (user, times) in posts {
        let (order, value) = order_and_value(*times);
        if order <= limit {
            all.push((order, set.user_name(*user), value));
        }
        if all.len() > 1_000 {
            all.sort();
            all.truncate(3);
            limit = all.last().map_or(i64::MAX, |(order, ..)| *order);
        }
    }
    all.sort();
    let best = all.into_iter().take(3).map(|(_, user, value)| {
        let mut row = DocumentBuilder::new();
        row.append("user", user.as_str()).append(field, value);
        row.finish()
    });
    best.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_answers_as_the_generator_computes() {
        let folder =
            std::env::temp_dir().join(format!("nilometer-jsonbench-{}", std::process::id()));
        let folder = folder.to_string_lossy().into_owned();
        let line = format!("--in-process {folder} --events 1500 --draws 1 --batch 500");
        let words: Vec<String> = line.split(' ').map(String::from).collect();
        let mut text = String::new();
        let right = run(&words, &mut |told| text.push_str(told));
        drop(std::fs::remove_dir_all(&folder));
        assert_eq!(right, Ok(true), "{text}");
        // Six questions on three layouts.
        assert_eq!(text.matches("| right |").count(), 18, "{text}");
    }
}
