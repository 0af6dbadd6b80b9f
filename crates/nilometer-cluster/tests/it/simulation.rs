//! Histories of three nodes that take a database over from each other, on a clock that only the simulation moves and over a
//! store that fails, all by a seed: the same seed gives the same history, request by request.
//!
//! Each node has a thread, an engine of its own with tasks on that thread, and a turn: one node runs at a time, and at each
//! request to the store, before it and behind it, chance decides which continues. So a node may be stopped between a request
//! and its answer while another takes over. A node opens the database whenever it likes: whether another one has it is not
//! asked, because safety must not depend on it.
//!
//! No acknowledged batch is lost or there by half, none is there that was refused as fenced before its turn, no two
//! acknowledged batches have one number, and the bank's total is what it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::StreamExt;
use futures::stream::BoxStream;
use nilometer_cluster::{SimulatedWorld, SlateEngine, SlateOptions};
use nilometer_storage::testing::contract::TOGETHER;
use nilometer_storage::testing::random::Random;
use nilometer_storage::{Durability, Engine, Error, KeyspaceId, WriteBatch};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use slatedb_common::clock::{SystemClock, SystemClockTicker};

use crate::support::effort;

const NODES: usize = 3;
const ACCOUNTS: u64 = 4;
const TOTAL: u64 = 400;

/// What a node does in a history.
const STEPS: u64 = 25;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all nodes share: whose turn it is, the time, chance, and what happened.
struct World {
    state: Mutex<WorldState>,
    changed: Condvar,
}

struct WorldState {
    turn: usize,
    has_ended: [bool; NODES],
    random: Random,
    /// Milliseconds.
    now: i64,
    /// A hash of everything that happened, and its number.
    trace: (u64, u64),
    /// The numbers of acknowledged batches, with the node.
    acknowledged: BTreeMap<u64, usize>,
    takeovers: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            state: Mutex::new(WorldState {
                turn: 0,
                has_ended: [false; NODES],
                random: Random::new(seed),
                now: 0,
                trace: (0, 0),
                acknowledged: BTreeMap::new(),
                takeovers: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Waits for the turn of a node.
    fn await_turn(&self, node: usize) -> MutexGuard<'_, WorldState> {
        let mut state = lock(&self.state);
        while state.turn != node {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Notes what a node does, and lets chance decide who continues.
    fn step(&self, node: usize, what: &dyn fmt::Display) {
        let mut state = lock(&self.state);
        state.note(node, what);
        if state.random.one_in(3) {
            self.pass(&mut state);
        }
        drop(state);
        drop(self.await_turn(node));
    }

    fn pass(&self, state: &mut WorldState) {
        let open = (0..NODES).filter(|node| !state.has_ended[*node]);
        let open = open.collect::<Vec<_>>();
        if !open.is_empty() {
            state.turn = open[state.random.index(open.len())];
        }
        self.changed.notify_all();
    }

    fn end(&self, node: usize) {
        let mut state = lock(&self.state);
        state.has_ended[node] = true;
        self.pass(&mut state);
    }
}

/// Ends the turns of a node, also if it panics.
struct Turns<'a>(&'a World, usize);

impl Drop for Turns<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

impl WorldState {
    fn note(&mut self, node: usize, what: &dyn fmt::Display) {
        let mut hasher = DefaultHasher::new();
        (self.trace.0, node, what.to_string()).hash(&mut hasher);
        self.trace = (hasher.finish(), self.trace.1 + 1);
        if std::env::var_os("NILOMETER_TRACE").is_some() {
            eprintln!("{} {node} {what}", self.trace.1);
        }
    }
}

/// The clock of one node. The time is that of all; sleepers are those of the node.
struct Clock {
    world: Arc<World>,
    sleepers: Mutex<BTreeMap<(i64, u64), Waker>>,
    /// A task that is woken each time, so that the thread looks again before it waits for others.
    always: Mutex<Option<Waker>>,
    /// Tells sleepers with one time apart.
    sleeps: AtomicU64,
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Clock")
    }
}

impl Clock {
    /// Goes to the time of the next sleeper: nothing else can happen on this node.
    fn advance(&self) {
        let Some(((until, _), waker)) = lock(&self.sleepers).pop_first() else {
            return;
        };
        let mut state = lock(&self.world.state);
        state.now = state.now.max(until);
        drop(state);
        waker.wake();
        // The sleeper may be forgotten; then the next one is to wake.
        if let Some(waker) = &*lock(&self.always) {
            waker.wake_by_ref();
        }
    }
}

struct Sleep<'a> {
    clock: &'a Clock,
    key: (i64, u64),
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if lock(&self.clock.world.state).now >= self.key.0 {
            return Poll::Ready(());
        }
        let mut sleepers = lock(&self.clock.sleepers);
        sleepers.insert(self.key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        lock(&self.clock.sleepers).remove(&self.key);
    }
}

impl SystemClock for Clock {
    fn now(&self) -> DateTime<Utc> {
        let now = lock(&self.world.state).now;
        DateTime::<Utc>::UNIX_EPOCH + TimeDelta::days(20_000) + TimeDelta::milliseconds(now)
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4);
        let until = lock(&self.world.state).now.saturating_add(millis.max(1));
        let key = (until, self.sleeps.fetch_add(1, Ordering::Relaxed));
        Box::pin(Sleep { clock: self, key })
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}

/// The store, as one node reaches it.
#[derive(Clone)]
struct NodeStore {
    inner: Arc<InMemory>,
    world: Arc<World>,
    node: usize,
}

impl fmt::Debug for NodeStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "node {}", self.node)
    }
}

impl fmt::Display for NodeStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "node {}", self.node)
    }
}

impl NodeStore {
    async fn send<T>(
        &self,
        verb: &str,
        path: &Path,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> object_store::Result<T> {
        self.world.step(self.node, &format_args!("{verb} {path}"));
        let dice = lock(&self.world.state).random.below(100);
        let failed = |what: &'static str| object_store::Error::Generic {
            store: "simulated store",
            source: what.into(),
        };
        if dice < 3 {
            return Err(failed("503 Slow Down"));
        }
        let answer = request.await;
        let result = if answer.is_ok() { "done" } else { "refused" };
        self.world.step(self.node, &result);
        if dice < 6 {
            return Err(failed("the connection was closed"));
        }
        answer
    }
}

#[async_trait::async_trait]
impl ObjectStore for NodeStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let put = self.inner.put_opts(location, payload, options);
        self.send("put", location, put).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        let begun = self.inner.put_multipart_opts(location, options);
        self.send("put parts of", location, begun).await
    }

    async fn get_opts(
        &self,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        let get = self.inner.get_opts(location, options);
        self.send("get", location, get).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> object_store::Result<Vec<Bytes>> {
        let get = self.inner.get_ranges(location, ranges);
        self.send("get", location, get).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        let listed = async move {
            let found = store.inner.list(Some(&prefix)).collect::<Vec<_>>();
            let sent = store.send("list", &prefix, async { Ok(found.await) }).await;
            sent.unwrap_or_else(|error| vec![Err(error)])
        };
        futures::stream::once(listed)
            .flat_map(futures::stream::iter)
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        let path = prefix.cloned().unwrap_or_default();
        let listed = self.inner.list_with_delimiter(prefix);
        self.send("list", &path, listed).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        let copied = self.inner.copy_opts(from, to, options);
        self.send("copy", from, copied).await
    }
}

/// One node.
struct Node {
    number: usize,
    world: Arc<World>,
    store: NodeStore,
    random: Random,
    engine: Option<(SlateEngine, Arc<Clock>, KeyspaceId)>,
    /// Batches that may be there or not.
    unknown: BTreeSet<u64>,
}

fn options() -> SlateOptions {
    SlateOptions {
        memtable_bytes: 2 * 1024,
        merge_interval: Duration::from_millis(20),
        ..SlateOptions::tiny()
    }
}

fn number_of(value: Option<nilometer_storage::Bytes>) -> u64 {
    value.map_or(0, |value| {
        u64::from_be_bytes(value[..].try_into().expect("a number"))
    })
}

impl Node {
    fn run(mut self, steps: u64) -> BTreeSet<u64> {
        let world = Arc::clone(&self.world);
        drop(world.await_turn(self.number));
        let _turns = Turns(&world, self.number);
        for _ in 0..steps {
            world.step(self.number, &"next");
            let kind = self.random.below(20);
            match (&self.engine, kind) {
                (None, 0..2) => self.open(),
                (None, _) => {}
                (Some(_), 0) => self.kill(),
                (Some((engine, ..)), 1) => {
                    // Whether it is fenced does not matter.
                    let _ = engine.close();
                    self.engine = None;
                }
                (Some((engine, clock, _)), 2..5) => {
                    engine.idle(&**clock, Duration::from_millis(30));
                }
                _ => self.transfer(),
            }
        }
        self.kill();
        self.unknown
    }

    fn kill(&mut self) {
        if let Some((engine, ..)) = self.engine.take() {
            engine.abandon();
        }
    }

    fn open(&mut self) {
        let clock = Arc::new(Clock {
            world: Arc::clone(&self.world),
            sleepers: Mutex::default(),
            always: Mutex::default(),
            sleeps: AtomicU64::new(0),
        });
        let parked = Arc::clone(&clock);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .on_thread_park(move || parked.advance())
            .build();
        let runtime = runtime.expect("a runtime");
        let always = Arc::clone(&clock);
        runtime.spawn(std::future::poll_fn::<(), _>(move |context| {
            *lock(&always.always) = Some(context.waker().clone());
            Poll::Pending
        }));
        let world = SimulatedWorld {
            runtime,
            clock: clock.clone(),
            seed: Some(self.random.bits()),
        };
        let acknowledged = lock(&self.world.state).acknowledged.len() as u64;
        let store = Arc::new(self.store.clone());
        let opened = SlateEngine::open_simulated(store, "db", &options(), world);
        let outcome = opened.and_then(|engine| {
            let known = engine
                .keyspaces()
                .into_iter()
                .find(|known| known.name == "bank");
            let id = match known {
                Some(known) => known.id,
                None => match engine.create_keyspace("bank", TOGETHER) {
                    Ok(id) => id,
                    Err(error) => {
                        engine.abandon();
                        return Err(error);
                    }
                },
            };
            Ok((engine, id))
        });
        let told = outcome
            .as_ref()
            .map_or_else(|error| error.to_string(), |_| "open".to_owned());
        self.world.step(self.number, &told);
        let Ok((engine, id)) = outcome else { return };
        // Everything that was acknowledged before it was opened.
        let last = engine.snapshot().and_then(|view| view.get(id, b"last"));
        match last {
            Ok(last) => {
                let last = number_of(last);
                assert!(last >= acknowledged, "{last} of {acknowledged} batches");
                lock(&self.world.state).takeovers += 1;
                self.engine = Some((engine, clock, id));
            }
            Err(_) => engine.abandon(),
        }
    }

    /// Moves money, and counts.
    fn transfer(&mut self) {
        let Some((engine, _, id)) = &self.engine else {
            return;
        };
        let (id, durability) = (
            *id,
            match self.random.one_in(5) {
                true => Durability::Buffered,
                false => Durability::Sync,
            },
        );
        let (from, to) = (self.random.below(ACCOUNTS), self.random.below(ACCOUNTS));
        let filler = self.random.bytes(300);
        let read = engine.snapshot().and_then(|view| {
            let mut accounts = BTreeMap::new();
            for account in 0..ACCOUNTS {
                accounts.insert(account, view.get(id, &account.to_be_bytes())?);
            }
            Ok((number_of(view.get(id, b"last")?), accounts))
        });
        let read = read.map(|(last, accounts)| {
            let is_new = last == 0;
            let sums = accounts.into_iter().map(|(account, sum)| match is_new {
                true => (account, TOTAL / ACCOUNTS),
                false => (account, number_of(sum)),
            });
            (last + 1, sums.collect::<BTreeMap<_, _>>())
        });
        let Ok((number, mut sums)) = read else {
            return self.gone("read");
        };
        assert_eq!(sums.values().sum::<u64>(), TOTAL, "money was made or lost");
        let sum = self.random.below(sums[&from] + 1);
        *sums.entry(from).or_default() -= sum;
        *sums.entry(to).or_default() += sum;
        let mut batch = WriteBatch::new();
        for (account, sum) in sums {
            batch.put(
                id,
                account.to_be_bytes().to_vec(),
                sum.to_be_bytes().to_vec(),
            );
        }
        batch.put(id, b"last".to_vec(), number.to_be_bytes().to_vec());
        batch.put(id, [b"batch", &number.to_be_bytes()[..]].concat(), filler);
        let committed = engine.commit(batch, durability);
        let told = match &committed {
            Ok(_) => format!("{durability:?} {number}"),
            Err(error) => format!("{durability:?} {number}: {error}"),
        };
        self.world.step(self.number, &told);
        match (committed, durability) {
            (Ok(_), Durability::Sync) => {
                let mut state = lock(&self.world.state);
                let before = state.acknowledged.insert(number, self.number);
                assert_eq!(before, None, "batch {number} was acknowledged twice");
            }
            (Ok(_), Durability::Buffered) => drop(self.unknown.insert(number)),
            (Err(_), _) => {
                self.unknown.insert(number);
                self.gone("commit");
            }
        }
    }

    /// Gives up an engine that was fenced, or has ended.
    fn gone(&mut self, act: &str) {
        self.world.step(self.number, &format_args!("cannot {act}"));
        if let Some((engine, ..)) = self.engine.take() {
            engine.abandon();
        }
    }
}

/// What a history came to.
#[derive(Debug, PartialEq, Eq)]
struct History {
    trace: (u64, u64),
    acknowledged: u64,
    takeovers: u64,
}

fn history(seed: u64, steps: u64) -> History {
    let (world, inner) = (Arc::new(World::new(seed)), Arc::new(InMemory::new()));
    let mut random = Random::new(!seed);
    let nodes = (0..NODES).map(|number| Node {
        number,
        world: Arc::clone(&world),
        store: NodeStore {
            inner: Arc::clone(&inner),
            world: Arc::clone(&world),
            node: number,
        },
        random: Random::new(random.bits()),
        engine: None,
        unknown: BTreeSet::new(),
    });
    let mut unknown = BTreeSet::new();
    std::thread::scope(|scope| {
        let nodes = nodes.map(|node| scope.spawn(move || node.run(steps)));
        for node in nodes.collect::<Vec<_>>() {
            match node.join() {
                Ok(of_node) => unknown.extend(of_node),
                Err(panic) => {
                    eprintln!("seed {seed}");
                    std::panic::resume_unwind(panic);
                }
            }
        }
    });
    let state = lock(&world.state);
    let acknowledged = state.acknowledged.keys().copied().collect::<Vec<_>>();
    if let Some(last) = acknowledged.last().copied() {
        compare(&inner, seed, last, &acknowledged, &unknown);
    }
    History {
        trace: state.trace,
        acknowledged: acknowledged.len() as u64,
        takeovers: state.takeovers,
    }
}

/// Opens the database once more and compares.
fn compare(
    inner: &Arc<InMemory>,
    seed: u64,
    last: u64,
    acknowledged: &[u64],
    unknown: &BTreeSet<u64>,
) {
    let store: Arc<dyn ObjectStore> = inner.clone();
    let engine = match SlateEngine::open(store, "db", &options()) {
        Err(Error::Store { .. }) => return,
        opened => opened.expect("it opens"),
    };
    let id = engine.keyspaces().first().expect("the bank").id;
    let view = engine.snapshot().expect("snapshot");
    let there = number_of(view.get(id, b"last").expect("readable"));
    assert!(there >= last, "seed {seed}: {there} of {last} batches");
    let sums = (0..ACCOUNTS)
        .map(|account| number_of(view.get(id, &account.to_be_bytes()).expect("readable")));
    assert_eq!(sums.sum::<u64>(), TOTAL, "seed {seed}");
    for number in 1..=there {
        let key = [b"batch", &number.to_be_bytes()[..]].concat();
        let is_there = view.get(id, &key).expect("readable").is_some();
        assert!(is_there, "seed {seed}: batch {number} is there by half");
        let is_known = acknowledged.contains(&number) || unknown.contains(&number);
        assert!(
            is_known,
            "seed {seed}: batch {number} was written by no node"
        );
    }
}

/// Replay one with `NILOMETER_FUZZ_SEED` and `NILOMETER_FUZZ_RUNS=1`; `NILOMETER_TRACE` prints what happens.
#[test]
fn nodes_that_take_over_from_each_other_lose_nothing() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect("a number"))
    };
    let first = number("NILOMETER_FUZZ_SEED").unwrap_or(0);
    let runs = number("NILOMETER_FUZZ_RUNS").unwrap_or_else(|| effort(20, 1000, 20_000));
    let begun = Instant::now();
    let (next, sums) = (AtomicU64::new(first), Mutex::new((0, 0, 0)));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + runs {
                        return;
                    }
                    let one = history(seed, STEPS);
                    assert_eq!(one, history(seed, STEPS), "seed {seed} gives two histories");
                    let mut sums = lock(&sums);
                    sums.0 += one.takeovers;
                    sums.1 += one.acknowledged;
                    sums.2 += one.trace.1;
                }
            });
        }
    });
    let (takeovers, acknowledged, events) = *lock(&sums);
    eprintln!(
        "simulated {runs} histories, twice each, in {:?}: {takeovers} takeovers, {acknowledged} batches acknowledged, {events} events",
        begun.elapsed()
    );
    assert!(runs < 10 || takeovers > runs && acknowledged > runs);
}
