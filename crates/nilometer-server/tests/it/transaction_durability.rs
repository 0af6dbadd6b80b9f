//! Random transactions of several sessions while the server is killed: each is there as a whole or not at all, and the history
//! is one of snapshot isolation.
//!
//! The sessions of a history share lists and accounts. A transaction appends to lists, transfers between accounts, or reads all. An
//! append is also a measurement of the list's series: what a transaction reads of both must be the same values. A
//! measurement may be removed and inserted again. Beside transactions the sessions append by numbered statements, and read snapshots.
//!
//! A history ends when the server is killed. Then each session repeats its last commit, acknowledged or not, or its last
//! statement, and the history is checked by [`isolation`](crate::isolation).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nilometer_bson::{Array, Binary, Document, DocumentBuilder, Value, ValueRef, array, doc};
use nilometer_storage::testing::Effort;

use crate::client::{Client, body, code, is_ok, op_msg};
use crate::isolation::{self, Lists, Ran};
use crate::random::Random;
use crate::server::{Directory, Server, nilometer};

const HISTORIES: Effort = Effort {
    fast: 32,
    long: 10_000,
    soak: 100_000,
};

/// Histories that one kill ends.
const GROUPS: u64 = 16;

/// Sessions of a history.
const SESSIONS: u8 = 3;

/// Lists of a history, and accounts.
const LISTS: u64 = 4;
const ACCOUNTS: u64 = 3;

/// The amount of an account at first.
const AMOUNT: i64 = 100;

/// Maximum time before a kill, in ms.
const WRITING_MS_MAX: u64 = 250;

const CONFLICT: i64 = 112;
const NO_SUCH_TRANSACTION: i64 = 251;

/// Values below 0 are of numbered statements, which insert no measurement.
fn is_measured(value: &i32) -> bool {
    *value > 0
}

fn number(document: &Document, name: &str) -> i64 {
    let number = document.get(name).as_exact_i64();
    number.unwrap_or_else(|| panic!("{name} of {document:?}"))
}

fn first_batch(reply: &Document) -> Vec<Document> {
    let cursor = reply.get("cursor").as_document().expect("a cursor");
    assert_eq!(cursor.get("id").as_exact_i64(), Some(0));
    let batch = cursor.get("firstBatch").as_array().expect("a batch");
    let documents = batch.iter().map(|one| one.as_document());
    documents
        .map(|one| one.expect("a document").to_document())
        .collect()
}

fn is_transient(reply: &Document) -> bool {
    let labels = reply.get("errorLabels").as_array();
    labels.is_some_and(|labels| {
        labels
            .iter()
            .any(|label| label.as_str() == Some("TransientTransactionError"))
    })
}

fn find(collection: &str, filter: Document) -> Document {
    doc! {"find": collection, "filter": filter, "batchSize": 10_000}
}

fn update(collection: &str, id: i32, change: Document) -> Document {
    let statement = doc! {"q": doc! {"_id": id}, "u": change};
    doc! {"update": collection, "updates": array![statement]}
}

fn measure(list: i32, value: i32) -> Document {
    let time = Value::DateTime(1_700_000_000_000 + i64::from(value) * 1000);
    let measurement = doc! {"_id": value, "t": time, "m": list, "v": value};
    doc! {"insert": "values", "documents": array![measurement]}
}

/// Returns the values of a list, and whether its measurements are the same.
fn values(list: &Document, measurements: &[Document]) -> Result<Vec<i32>, String> {
    let values = list.get("l").as_array().expect("a list");
    let values: Vec<i32> = values
        .iter()
        .map(|value| value.as_exact_i64().expect("a number") as i32)
        .collect();
    let mut measured: Vec<i32> = measurements
        .iter()
        .map(|one| number(one, "v") as i32)
        .collect();
    measured.sort_unstable();
    let mut expected: Vec<i32> = values.iter().copied().filter(is_measured).collect();
    expected.sort_unstable();
    match measured == expected {
        true => Ok(values),
        false => Err(format!("{list:?} and the measurements {measured:?}")),
    }
}

/// Why a transaction has not gone on.
enum Stop {
    Lost,
    Conflict,
}

/// The last command that can be repeated.
#[derive(Clone)]
enum Repeated {
    /// A commit, and whether it was acknowledged: `None` is unknown.
    Commit(Option<bool>),
    Statement(Document),
}

/// A session of a history.
struct Session<'m> {
    id: Vec<u8>,
    /// The first list and account of its history.
    base: i32,
    number: i64,
    random: Random,
    moments: &'m AtomicU64,
    /// The next value that any session appends.
    values: &'m AtomicU64,
    ran: Vec<Ran>,
    /// The transaction or statement that runs.
    running: Ran,
    /// True if it began a transaction.
    is_begun: bool,
    /// What is to be repeated after a kill. If it is unknown whether it took effect, `running` is what it does.
    last: Option<Repeated>,
    repeated_commits: u64,
}

impl Session<'_> {
    fn moment(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    fn any_list(&mut self) -> i32 {
        self.base + self.random.int(LISTS)
    }

    fn next_value(&self) -> i32 {
        self.values.fetch_add(1, Ordering::SeqCst) as i32
    }

    fn with_session(&self, command: Document, database: &str) -> DocumentBuilder {
        let id = Binary {
            subtype: 4,
            bytes: self.id.clone().into(),
        };
        let mut out = DocumentBuilder::extending(command);
        out.append("$db", database);
        out.append("lsid", doc! {"id": Value::from(id)});
        out.append("txnNumber", self.number);
        out
    }

    /// Runs a statement of the transaction.
    fn statement(&mut self, client: &mut Client, command: Document) -> Result<Document, Stop> {
        let mut out = self.with_session(command, "test");
        out.append("autocommit", false);
        if !std::mem::replace(&mut self.is_begun, true) {
            out.append("startTransaction", true);
        }
        let message = op_msg(0, &[body(&out.finish())]);
        let reply = client.ask_or_lose(&message).ok_or(Stop::Lost)?;
        if !is_ok(&reply) {
            let is_conflict = code(&reply) == CONFLICT && is_transient(&reply);
            assert!(is_conflict, "{reply:?}");
            return Err(Stop::Conflict);
        }
        assert!(reply.get("writeErrors").is_missing(), "{reply:?}");
        Ok(reply)
    }

    /// Ends the transaction; `None` if the connection is lost.
    fn end(&mut self, client: &mut Client, name: &str) -> Option<Document> {
        let mut command = DocumentBuilder::new();
        command.append(name, 1);
        let mut out = self.with_session(command.finish(), "admin");
        out.append("autocommit", false);
        client.ask_or_lose(&op_msg(0, &[body(&out.finish())]))
    }

    fn read_list(&mut self, client: &mut Client, list: i32) -> Result<Vec<i32>, Stop> {
        let reply = self.statement(client, find("lists", doc! {"_id": list}))?;
        let found = first_batch(&reply);
        let reply = self.statement(client, find("values", doc! {"m": list}))?;
        let read = values(&found[0], &first_batch(&reply));
        let mut read = read.unwrap_or_else(|text| panic!("{text} in {:?}", self.running));
        let own = self.running.appends.iter().filter(|(of, _)| *of == list);
        let own: Vec<i32> = own.map(|(_, value)| *value).collect();
        assert!(read.ends_with(&own), "{own:?} at the end of {read:?}");
        read.truncate(read.len() - own.len());
        self.running.reads.push((list, read.clone()));
        Ok(read)
    }

    fn append(&mut self, client: &mut Client, list: i32) -> Result<(), Stop> {
        let value = self.next_value();
        let push = doc! {"$push": doc! {"l": value}};
        let commands = [update("lists", list, push), measure(list, value)];
        // In any order.
        let first = self.random.below(2) as usize;
        for at in [first, 1 - first] {
            self.statement(client, commands[at].clone())?;
        }
        self.running.appends.push((list, value));
        Ok(())
    }

    /// Removes a measurement and inserts it again.
    fn insert_again(&mut self, client: &mut Client, list: i32) -> Result<(), Stop> {
        let read = self.read_list(client, list)?;
        let Some(value) = read.iter().copied().rfind(is_measured) else {
            return Ok(());
        };
        let statement = doc! {"q": doc! {"m": list, "_id": value}, "limit": 0};
        let delete = doc! {"delete": "values", "deletes": array![statement]};
        let reply = self.statement(client, delete)?;
        assert_eq!(number(&reply, "n"), 1, "{reply:?}");
        self.statement(client, measure(list, value)).map(drop)
    }

    fn transfer(&mut self, client: &mut Client) -> Result<(), Stop> {
        let from = self.random.below(ACCOUNTS);
        let to = (from + 1 + self.random.below(ACCOUNTS - 1)) % ACCOUNTS;
        let amount = 1 + self.random.below(9) as i64;
        for (account, amount) in [(from, -amount), (to, amount)] {
            let id = self.base + account as i32;
            let reply = self.statement(client, find("accounts", doc! {"_id": id}))?;
            let amount = number(&first_batch(&reply)[0], "amount") + amount;
            let change = doc! {"$set": doc! {"amount": amount}};
            self.statement(client, update("accounts", id, change))?;
        }
        Ok(())
    }

    fn read_all(&mut self, client: &mut Client) -> Result<(), Stop> {
        let first = self.base;
        let range = doc! {"$gte": first, "$lt": first + ACCOUNTS as i32};
        let reply = self.statement(client, find("accounts", doc! {"_id": range}))?;
        let accounts = first_batch(&reply);
        let sum: i64 = accounts.iter().map(|one| number(one, "amount")).sum();
        assert_eq!(sum, ACCOUNTS as i64 * AMOUNT, "{accounts:?}");
        for list in first..first + LISTS as i32 {
            self.read_list(client, list)?;
        }
        Ok(())
    }

    fn statements(&mut self, client: &mut Client) -> Result<(), Stop> {
        match self.random.below(8) {
            0 => return self.read_all(client),
            1 | 2 => self.transfer(client)?,
            _ => {}
        }
        for _ in 0..1 + self.random.below(4) {
            let list = self.any_list();
            match self.random.below(8) {
                0 => self.insert_again(client, list)?,
                1..4 => drop(self.read_list(client, list)?),
                _ => self.append(client, list)?,
            }
        }
        Ok(())
    }

    /// Notes the end of what ran.
    fn ended(&mut self, is_committed: bool) {
        self.running.is_committed = is_committed;
        self.running.ended = self.moment();
        self.ran.push(std::mem::take(&mut self.running));
    }

    /// Begins what has the next number.
    fn begin(&mut self) {
        self.number += 1;
        self.is_begun = false;
        self.running = Ran {
            begun: self.moment(),
            ..Ran::default()
        };
    }

    /// Runs a transaction. False if the connection is lost.
    fn transaction(&mut self, client: &mut Client) -> bool {
        self.begin();
        self.last = Some(Repeated::Commit(Some(false)));
        match self.statements(client) {
            Ok(()) => {}
            Err(Stop::Conflict) => {
                self.ended(false);
                return true;
            }
            Err(Stop::Lost) => {
                self.ended(false);
                return false;
            }
        }
        if self.random.below(8) == 0 {
            let reply = self.end(client, "abortTransaction");
            assert!(reply.as_ref().is_none_or(is_ok), "{reply:?}");
            self.ended(false);
            return reply.is_some();
        }
        self.last = Some(Repeated::Commit(None));
        let Some(reply) = self.end(client, "commitTransaction") else {
            return false;
        };
        let is_committed = is_ok(&reply);
        if !is_committed {
            assert!(
                code(&reply) == CONFLICT && is_transient(&reply),
                "{reply:?}"
            );
        }
        self.last = Some(Repeated::Commit(Some(is_committed)));
        self.ended(is_committed);
        true
    }

    /// Appends by a numbered statement. False if the connection is lost.
    fn single(&mut self, client: &mut Client) -> bool {
        self.begin();
        let (list, value) = (self.any_list(), -self.next_value());
        self.running.appends.push((list, value));
        let command = update("lists", list, doc! {"$push": doc! {"l": value}});
        let command = self.with_session(command, "test").finish();
        self.last = Some(Repeated::Statement(command.clone()));
        let Some(reply) = client.ask_or_lose(&op_msg(0, &[body(&command)])) else {
            return false;
        };
        assert!(is_ok(&reply) && number(&reply, "n") == 1, "{reply:?}");
        self.ended(true);
        true
    }

    /// Reads all of one moment outside of a transaction. False if the connection is lost.
    fn read_snapshot(&mut self, client: &mut Client) -> bool {
        let begun = self.moment();
        let first = self.base;
        let mut time = None;
        let mut found = Vec::new();
        for (collection, field, count) in [
            ("lists", "_id", LISTS),
            ("values", "m", LISTS),
            ("accounts", "_id", ACCOUNTS),
        ] {
            let range = doc! {"$gte": first, "$lt": first + count as i32};
            let mut concern = DocumentBuilder::new();
            concern.append("level", "snapshot");
            if let Some(time) = &time {
                concern.append("atClusterTime", Value::clone(time));
            }
            let mut filter = DocumentBuilder::new();
            filter.append(field, range);
            let mut command = DocumentBuilder::extending(find(collection, filter.finish()));
            command.append("readConcern", concern.finish());
            command.append("$db", "test");
            let message = op_msg(0, &[body(&command.finish())]);
            let Some(reply) = client.ask_or_lose(&message) else {
                return false;
            };
            assert!(is_ok(&reply), "{reply:?}");
            let cursor = reply.get("cursor").as_document().expect("a cursor");
            time = Some(cursor.get("atClusterTime").to_value());
            found.push(first_batch(&reply));
        }
        let sum: i64 = found[2].iter().map(|one| number(one, "amount")).sum();
        assert_eq!(sum, ACCOUNTS as i64 * AMOUNT, "{found:?}");
        let reads = found[0].iter().map(|list| {
            let id = number(list, "_id");
            let of_it = found[1].iter().filter(|one| number(one, "m") == id);
            let of_it: Vec<Document> = of_it.cloned().collect();
            let read = values(list, &of_it);
            (id as i32, read.unwrap_or_else(|text| panic!("{text}")))
        });
        let reads = reads.collect();
        self.ran.push(Ran {
            is_committed: true,
            begun,
            ended: self.moment(),
            reads,
            appends: Vec::new(),
        });
        true
    }

    /// Runs transactions, statements and reads until the connection is lost.
    fn write(&mut self, port: u16) {
        let Some(mut client) = Client::try_connect(port) else {
            return;
        };
        loop {
            let is_there = match self.random.below(8) {
                0 => self.single(&mut client),
                1 => self.read_snapshot(&mut client),
                _ => self.transaction(&mut client),
            };
            if !is_there {
                return;
            }
        }
    }

    /// Repeats the last commit or statement after a kill, twice: the answer is that of the first time, or what happened.
    fn repeat(&mut self, client: &mut Client) {
        match self.last.take() {
            None => {}
            Some(Repeated::Statement(command)) => {
                for _ in 0..2 {
                    let reply = client.ask(&op_msg(0, &[body(&command)]));
                    assert!(is_ok(&reply) && number(&reply, "n") == 1, "{reply:?}");
                }
                if !self.running.appends.is_empty() {
                    self.ended(true);
                }
            }
            Some(Repeated::Commit(known)) => {
                let replies = [(); 2].map(|()| self.end(client, "commitTransaction"));
                let [one, two] = replies.map(|reply| reply.expect("a reply"));
                assert_eq!(is_ok(&one), is_ok(&two), "{one:?} and {two:?}");
                for reply in [&one, &two].into_iter().filter(|reply| !is_ok(reply)) {
                    assert_eq!(code(reply), NO_SUCH_TRANSACTION, "{reply:?}");
                    assert!(is_transient(reply), "{reply:?}");
                }
                match known {
                    Some(false) => assert!(!is_ok(&one), "{one:?}"),
                    // A transaction without changes leaves nothing behind.
                    Some(true) => {
                        let changed = self.ran.last().is_some_and(|ran| !ran.appends.is_empty());
                        assert!(is_ok(&one) || !changed, "{one:?}");
                    }
                    None => self.ended(is_ok(&one)),
                }
                self.repeated_commits += u64::from(is_ok(&one));
            }
        }
    }
}

fn serve(directory: &Directory) -> Server {
    let path = directory.0.join("data");
    let path = path.to_str().expect("a path");
    let arguments = ["serve", "--port", "0", "--quiet", "--dbpath", path];
    let set = ["--replSet", "garden"];
    Server::spawn(&mut nilometer(&[&arguments[..], &set].concat()))
}

fn run(client: &mut Client, command: &Document) -> Document {
    let reply = client.run_on("test", command);
    assert!(is_ok(&reply), "{reply:?}");
    reply
}

/// The first list and account of a history.
fn base(group: u64) -> i32 {
    100 * group as i32
}

/// Makes lists, accounts and series.
fn create(client: &mut Client) {
    let options = doc! {"timeField": "t", "metaField": "m"};
    run(client, &doc! {"create": "values", "timeseries": options});
    for (collection, count) in [("lists", LISTS), ("accounts", ACCOUNTS)] {
        let ids = (0..GROUPS).flat_map(|group| (base(group)..).take(count as usize));
        let documents =
            ids.map(|id| Value::from(doc! {"_id": id, "amount": AMOUNT, "l": array![]}));
        let documents = documents.collect::<Array>();
        run(client, &doc! {"insert": collection, "documents": documents});
    }
}

/// Empties lists and series.
fn clear(client: &mut Client) {
    let clear = doc! {"$set": doc! {"l": array![]}};
    let all = doc! {"q": doc! {}, "u": clear, "multi": true};
    run(client, &doc! {"update": "lists", "updates": array![all]});
    let all = doc! {"q": doc! {}, "limit": 0};
    run(client, &doc! {"delete": "values", "deletes": array![all]});
}

/// Returns the lists of all histories.
fn stored(client: &mut Client) -> Lists {
    let measurements = client.find_all("test", &doc! {"find": "values"});
    let lists = client.find_all("test", &doc! {"find": "lists"});
    let lists = lists.iter().map(|list| {
        let id = number(list, "_id");
        let of_it = measurements.iter().filter(|one| number(one, "m") == id);
        let of_it: Vec<Document> = of_it.cloned().collect();
        let values = values(list, &of_it).unwrap_or_else(|text| panic!("{text}"));
        (id as i32, values)
    });
    lists.collect()
}

/// Checks the histories that have ended. Returns the number of their transactions, and of those that committed.
fn check(client: &mut Client, sessions: &mut [Session<'_>]) -> (usize, usize) {
    let lists = stored(client);
    let accounts = client.find_all("test", &doc! {"find": "accounts"});
    let (mut all, mut committed) = (0, 0);
    for group in 0..GROUPS {
        let base = base(group);
        let ids = base..base + 100;
        let of_it = |id: i64| ids.contains(&(id as i32));
        let own = accounts.iter().filter(|one| of_it(number(one, "_id")));
        let sum: i64 = own.map(|one| number(one, "amount")).sum();
        assert_eq!(sum, ACCOUNTS as i64 * AMOUNT, "history {group}");
        let own = lists.iter().filter(|(id, _)| ids.contains(*id));
        let own: Lists = own.map(|(id, list)| (*id, list.clone())).collect();
        let sessions = sessions.iter_mut().filter(|session| session.base == base);
        let mut history = Vec::new();
        for session in sessions {
            history.append(&mut session.ran);
        }
        if let Err(text) = isolation::check(&history, &own) {
            panic!("{text} in the history {history:#?} of {own:?}");
        }
        all += history.len();
        committed += history.iter().filter(|ran| ran.is_committed).count();
    }
    (all, committed)
}

#[test]
#[expect(clippy::print_stdout, reason = "what a run did")]
fn transactions_are_whole_and_isolated_over_kills() {
    let mut random = Random::of_run(23);
    let (moments, next) = (AtomicU64::new(1), AtomicU64::new(1));
    let directory = Directory::new();
    let mut server = serve(&directory);
    create(&mut server.connect());
    let mut sessions = Vec::new();
    for group in 0..GROUPS {
        for of_group in 0..SESSIONS {
            sessions.push(Session {
                id: [vec![group as u8, of_group], vec![7; 14]].concat(),
                base: base(group),
                number: 0,
                random: Random(random.below(u64::MAX)),
                moments: &moments,
                values: &next,
                ran: Vec::new(),
                running: Ran::default(),
                is_begun: false,
                last: None,
                repeated_commits: 0,
            });
        }
    }
    let kills = HISTORIES.requested().div_ceil(GROUPS);
    let (mut all, mut committed, mut unknown) = (0, 0, 0);
    for _ in 0..kills {
        let port = server.port;
        std::thread::scope(|scope| {
            for session in &mut sessions {
                scope.spawn(move || session.write(port));
            }
            std::thread::sleep(Duration::from_millis(30 + random.below(WRITING_MS_MAX)));
            server.signal("KILL");
            server.wait();
        });
        let lost = |session: &&Session<'_>| matches!(session.last, Some(Repeated::Commit(None)));
        unknown += sessions.iter().filter(lost).count();
        server = serve(&directory);
        let mut client = server.connect();
        for session in &mut sessions {
            session.repeat(&mut client);
        }
        let (of_histories, of_them) = check(&mut client, &mut sessions);
        all += of_histories;
        committed += of_them;
        clear(&mut client);
    }
    for collection in ["lists", "accounts", "values"] {
        let reply = run(
            &mut server.connect(),
            &doc! {"validate": collection, "full": true},
        );
        assert!(
            matches!(reply.get("valid"), ValueRef::Bool(true)),
            "{reply:?}"
        );
    }
    let repeated: u64 = sessions
        .iter()
        .map(|session| session.repeated_commits)
        .sum();
    println!(
        "{} histories, {kills} kills, {all} transactions and statements, {committed} committed, {unknown} commits without an answer, {repeated} repeated",
        kills * GROUPS
    );
    assert!(committed > 0 && committed < all, "{committed} of {all}");
}
