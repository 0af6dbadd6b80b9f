//! Commands: those of a golden script in order, with changed ones in between.
//!
//! They run on a database in memory. An input is harmless if the answer is `ok: 1`, or an error with a code and a text
//! whose code is not reserved for bugs. In the corpus an input is a line of extended JSON; all lines of a file run in
//! order on one database.

use nilometer::services::{Environment, IdSource};
use nilometer::{ClientSession, Database, Request};
use nilometer_bson::extjson::{parse_document, to_canonical};
use nilometer_bson::fuzz::Numbers;
use nilometer_bson::validate::{Limits, validate_document};
use nilometer_bson::{DocRef, Document, Value};

use crate::mutation::{mutate, pick};
use crate::runner::Runner;
use crate::scripts::Seeds;
use crate::tree::Node;

/// Maximum changed commands for each command of a script.
const CHANGED_MAX: u64 = 6;

/// Commands that wait, write files or end the process: not for a campaign.
const LEFT_OUT: [&str; 7] = [
    "nilometerBackup",
    "shutdown",
    "fsync",
    "saslStart",
    "saslContinue",
    "authenticate",
    "rotateCertificates",
];

/// Fields that make the server wait.
const WAITING: [&str; 2] = ["awaitData", "maxAwaitTimeMS"];

/// Limit of documents created by `$densify`; a million would not hang but take long.
const DENSIFY_MAX: &str = "5000";

/// Error codes that mean a bug: InternalError, DataCorruptionDetected.
const BUGS: [i64; 2] = [1, 282];

/// A database in memory and one connection to it.
pub struct Fixture {
    database: Database,
    session: ClientSession,
}

impl Default for Fixture {
    fn default() -> Self {
        Self::new()
    }
}

impl Fixture {
    /// Creates an empty database with reproducible ids.
    ///
    /// # Panics
    ///
    /// If it cannot be created.
    pub fn new() -> Self {
        let environment = Environment {
            ids: IdSource::seeded(1),
            ..Environment::default()
        };
        let parameters = &environment.parameters;
        let set = parameters.set_at_startup("internalQueryMaxAllowedDensifyDocs", DENSIFY_MAX);
        set.expect("a parameter");
        Self {
            database: Database::in_memory_with(environment).expect("a database"),
            session: ClientSession::embedded(),
        }
    }

    /// Runs a command on data that may be damaged, so DataCorruptionDetected is allowed.
    ///
    /// # Panics
    ///
    /// If the answer has the code of a bug.
    pub fn ask(&mut self, command: &Document) -> Document {
        let request = Request::new(command.clone());
        let reply = self.database.run_command(&mut self.session, &request);
        let code = reply.get("code").as_exact_i64();
        assert_ne!(code, Some(1), "{reply:?}");
        reply
    }

    /// Runs an arbitrary command.
    ///
    /// # Panics
    ///
    /// If the answer is invalid.
    pub fn run(&mut self, command: &Document) -> Document {
        let request = Request::new(command.clone());
        let reply = self.database.run_command(&mut self.session, &request);
        let ok = reply.get("ok").as_exact_i64();
        if ok != Some(1) {
            let code = reply.get("code").as_exact_i64();
            assert_eq!(ok, Some(0), "{reply:?}");
            assert!(reply.get("errmsg").as_str().is_some(), "{reply:?}");
            assert!(!BUGS.contains(&code.expect("a code")), "{reply:?}");
        }
        reply
    }
}

/// True if a command is answered with `ok: 1`.
pub fn is_ok(reply: &Document) -> bool {
    reply.get("ok").as_exact_i64() == Some(1)
}

/// True if the campaign must not run it.
pub fn is_left_out(command: &Document) -> bool {
    let first = command.iter().next();
    first.is_some_and(|element| LEFT_OUT.contains(&element.name()))
        || validate_document(command.as_bytes(), &Limits::default()).is_err()
}

/// Removes the fields that make a command wait.
pub fn without_waiting(node: &mut Node) {
    if let Node::Fields(fields) = node {
        fields.retain(|(name, _)| !WAITING.contains(&name.as_str()));
    }
}

/// Adds the database to a command.
fn addressed(command: &Node) -> Document {
    let mut command = command.clone();
    if let Node::Fields(fields) = &mut command
        && !fields.iter().any(|(name, _)| name == "$db")
    {
        fields.push(("$db".to_owned(), Node::Leaf(Value::from("test"))));
    }
    command.document()
}

/// Runs a script with changed commands between its own.
pub fn batch(seeds: &Seeds, seed: u64, runner: &mut Runner) {
    let numbers = &mut Numbers::new(seed);
    let script = pick(numbers, &seeds.scripts);
    let mut fixture = Fixture::new();
    for command in script {
        let node = Node::of(command.as_ref());
        for _ in 0..numbers.below(CHANGED_MAX) {
            let mut changed = node.clone();
            mutate(numbers, seeds, &mut changed);
            run(&mut fixture, changed, runner);
        }
        // Sometimes a step is left out, so that the following ones find another state.
        if numbers.below(10) != 0 {
            run(&mut fixture, node, runner);
        }
    }
}

/// Runs one command as an input.
fn run(fixture: &mut Fixture, mut command: Node, runner: &mut Runner) {
    without_waiting(&mut command);
    let command = addressed(&command);
    if !is_left_out(&command) {
        runner.one(
            || to_canonical(command.as_ref()),
            || is_ok(&fixture.run(&command)),
        );
    }
}

/// Splits bytes into concatenated documents, up to the first invalid one.
pub fn documents(mut bytes: &[u8]) -> Vec<Document> {
    let mut found = Vec::new();
    while let Some(length) = bytes.first_chunk() {
        let length = usize::try_from(i32::from_le_bytes(*length)).unwrap_or(0);
        let Some((first, rest)) = bytes.split_at_checked(length) else {
            break;
        };
        let is_sound = validate_document(first, &Limits::default()).is_ok();
        let Some(document) = DocRef::new(first).filter(|_| is_sound) else {
            break;
        };
        found.push(document.to_document());
        bytes = rest;
    }
    found
}

/// Runs bytes as consecutive commands. True if one succeeded.
pub fn one(bytes: &[u8]) -> bool {
    let mut fixture = Fixture::new();
    let mut any = false;
    for command in documents(bytes) {
        let mut node = Node::of(command.as_ref());
        without_waiting(&mut node);
        let command = addressed(&node);
        any |= !is_left_out(&command) && is_ok(&fixture.run(&command));
    }
    any
}

/// Replays commands, one per line.
pub fn replay(text: &str, runner: &mut Runner) {
    let mut fixture = Fixture::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let command = parse_document(line);
        let command = command.unwrap_or_else(|e| panic!("{e} in {line}"));
        run(&mut fixture, Node::of(command.as_ref()), runner);
    }
}
