//! Opening: from the files of a directory to a running engine.
//!
//! ```text
//! lock the directory, read the list of trees, remove tree directories it does not name
//! each tree: check the manifest, open, hi = highest sequence number in its tables
//! read the log (rules in log/replay.rs); for each operation
//!     unknown keyspace, id never assigned  -> damage        dropped keyspace -> skip
//!     number <= hi of its tree             -> skip          else insert into the memtable
//! last number of the log < some hi         -> damage: the log lost its end
//! begin a new segment, set the counters, start the threads
//! ```
//!
//! Inserting dominates the time, so operations are gathered and inserted by several threads; their order does not
//! matter because each carries its sequence number. When memory runs short, trees are flushed before more of the log is
//! read.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use byteview::ByteView;
use lsm_tree::{AbstractTree, Cache, DescriptorTable, SequenceNumberCounter, Slice};

use super::TreeMap;
use super::batch::memtable_entry;
use super::core::Core;
use super::directory::{Directory, tree_path};
use super::log::replay::{LogBatch, LogCut, LogEnd, read_remains, replay, segment_ids};
use super::log::{HighestSequences, Log, LogStart, SealedSegment, payload, segment_path};
use super::manifest;
use super::options::LsmOptions;
use super::pending_io::{PendingIo, TrackedFileSystem};
use super::read_sequences::ReadSequences;
use super::tree::{NO_READERS, Tree, TreeContext};
use super::tree_list::TreeList;
use super::verify::file_checksum;
use crate::engine::{Keyspace, KeyspaceId};
use crate::error::{Error, Result};

/// Operations to gather before inserting.
const GATHERED_OPERATIONS_MAX: usize = 256 * 1024;

/// Bytes of payloads to gather before inserting.
const GATHERED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Maximum number of inserting threads.
const THREADS_MAX: usize = 8;

/// The result of opening a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Batches read from the log.
    pub batches: u64,
    /// Replayed operations not yet flushed.
    pub operations: u64,
    /// The unreadable end of the log, if there was one.
    pub cut: Option<LogCut>,
    /// Where earlier openings cut the log, as far as its files still exist.
    pub earlier_cuts: Vec<LogCut>,
}

/// Receives each damage that is skipped, with its keyspace.
pub(super) type Report<'a> = dyn FnMut(Option<KeyspaceId>, String) + 'a;

/// Opens the readable part of the database at `path` and removes the rest from its files, so only ever call it on a
/// copy. Damage to the list of keyspaces is still an error.
pub(super) fn open_damaged(
    path: &Path,
    options: LsmOptions,
    report: &mut Report<'_>,
) -> Result<Core> {
    let directory = Directory::open(path)?;
    let mut list = read_list(&directory)?;
    let context = new_context(directory, options);
    let mut trees = TreeMap::new();
    for keyspace in &list.keyspaces {
        let tree = match list.unflushed.contains(&keyspace.id) {
            true => Tree::open_unflushed(&context, keyspace.clone())?,
            false => open_damaged_tree(&context, keyspace, report)?,
        };
        trees.insert(keyspace.id, Arc::new(tree));
    }
    let mut replayer = Replayer::new(&context, &trees, &mut list);
    let end = read_damaged_log(&context.directory.log(), &mut replayer, report)?;
    replayer.insert_gathered()?;
    let mut end = end.unwrap_or(NO_LOG);
    if let Some(cut) = &end.cut {
        report(None, cut.to_string());
    }
    let last = replayer.persisted_max.max(end.last_sequence);
    if end.last_sequence < replayer.persisted_max {
        report(None, "the end of the log is missing".to_owned());
        end.last_sequence = last;
    }
    let highest = std::mem::take(&mut replayer.highest);
    context.sequence.fetch_max(last + 1);
    let read_sequences = ReadSequences::new(context.sequence.get());
    let log = start_log(&context, end, highest)?;
    Ok(Core::new(context, log, read_sequences, list, trees))
}

/// Opens a tree; if that fails, without its damaged files; if that fails too, creates an empty tree in its place.
fn open_damaged_tree(
    context: &TreeContext,
    keyspace: &Keyspace,
    report: &mut Report<'_>,
) -> Result<Tree> {
    let error = match Tree::open(context, keyspace.clone()) {
        Ok(tree) => return Ok(tree),
        Err(error) => error,
    };
    let path = tree_path(&context.directory.trees(), keyspace.id.0);
    let gone = manifest::leave_out(&path, |(folder, id, sum)| {
        let file = path.join(folder).join(id.to_string());
        file_checksum(&file).is_ok_and(|found| found == sum)
    });
    if let Ok(gone) = gone
        && !gone.is_empty()
        && let Ok(tree) = Tree::open(context, keyspace.clone())
    {
        for (folder, id, _) in gone {
            let text = format!("cannot read the file {folder}/{id}: {error}");
            report(Some(keyspace.id), text);
        }
        return Ok(tree);
    }
    let text =
        format!("cannot read any of its files, only the entries in the log are kept: {error}");
    report(Some(keyspace.id), text);
    if path.exists() {
        fs::remove_dir_all(&path).map_err(|source| Error::io("remove", &path, source))?;
    }
    Tree::open_unchecked(context, keyspace.clone(), path, false)
}

/// Reads a log. If it is damaged, replays every whole batch and removes its files.
fn read_damaged_log(
    directory: &Path,
    replayer: &mut Replayer<'_>,
    report: &mut Report<'_>,
) -> Result<Option<LogEnd>> {
    let mut read_before = 0;
    let whole = replay(directory, &mut |batch| {
        read_before = batch.sequence;
        replayer.batch(batch)
    });
    let damage = match whole {
        Err(Error::Corruption { ref file, .. }) if !file.starts_with(directory) => return whole,
        Err(damage @ Error::Corruption { .. }) => damage.to_string(),
        // Whole batches may follow the first ignored one.
        Ok(Some(LogEnd { cut: Some(cut), .. })) if cut.write_is_complete => cut.to_string(),
        other => return other,
    };
    let mut end = NO_LOG;
    let (mut lost, mut senseless) = (0, 0);
    let segments = segment_ids(directory)?;
    for id in &segments {
        lost += read_remains(directory, *id, &mut end, &mut |batch| {
            if batch.sequence <= read_before {
                return Ok(());
            }
            match replayer.batch(batch) {
                Err(Error::Corruption { .. }) => {
                    senseless += 1;
                    Ok(())
                }
                other => other,
            }
        })?;
    }
    lost += senseless;
    let lost = match lost {
        0 => "the number of lost batches is unknown".to_owned(),
        lost => format!("at least {lost} batches are lost"),
    };
    let kept = end.batches - senseless;
    report(None, format!("{damage}; {lost}, {kept} are kept"));
    for id in segments {
        let path = segment_path(directory, id);
        fs::remove_file(&path).map_err(|source| Error::io("remove", &path, source))?;
    }
    Ok(Some(end))
}

/// The end of an absent log.
const NO_LOG: LogEnd = LogEnd::before(1, 0);

/// Returns the state that the trees of a directory share.
pub(super) fn new_context(directory: Directory, mut options: LsmOptions) -> TreeContext {
    let pending_io = Arc::<PendingIo>::default();
    let watched = TrackedFileSystem::new(options.file_system, Arc::clone(&pending_io));
    options.file_system = Arc::new(watched);
    TreeContext {
        pending_io,
        empty_trees: Mutex::default(),
        sequence: SequenceNumberCounter::new(1),
        cache: Arc::new(Cache::with_capacity_bytes(options.block_cache_bytes)),
        descriptors: Arc::new(DescriptorTable::new(options.open_files_max)),
        memory: Arc::new(AtomicU64::new(0)),
        directory,
        options,
    }
}

/// Opens the database at `path`.
pub(super) fn open(path: &Path, options: LsmOptions) -> Result<(Core, Recovery)> {
    let directory = Directory::open(path)?;
    let mut list = read_list(&directory)?;
    let context = new_context(directory, options);
    remove_unnamed(&context.directory.trees(), &list)?;
    let trees = open_trees(&context, &list)?;
    let mut replayer = Replayer::new(&context, &trees, &mut list);
    let log_directory = context.directory.log();
    let end = replay(&log_directory, &mut |batch| replayer.batch(batch))?;
    replayer.insert_gathered()?;
    let operations = replayer.operations;
    let highest = std::mem::take(&mut replayer.highest);
    let end = check_end(end, &trees, &log_directory)?;
    let recovery = Recovery {
        batches: end.batches,
        operations,
        cut: end.cut.clone(),
        earlier_cuts: end.earlier_cuts.clone(),
    };
    let last = replayer.persisted_max.max(end.last_sequence);
    context.sequence.fetch_max(last + 1);
    let visible = context.sequence.get();
    let log = start_log(&context, end, highest)?;
    let read_sequences = ReadSequences::new(visible);
    let core = Core::new(context, log, read_sequences, list, trees);
    Ok((core, recovery))
}

/// Reads the list of trees, or creates it in a new directory.
fn read_list(directory: &Directory) -> Result<TreeList> {
    if let Some(list) = TreeList::read(directory.path())? {
        return Ok(list);
    }
    let trees = directory.trees();
    let mut entries = fs::read_dir(&trees).map_err(|source| Error::io("list", &trees, source))?;
    if entries.next().is_some() || !segment_ids(&directory.log())?.is_empty() {
        let file = directory.path().join("TREES");
        let expected = "a list of the trees";
        return Err(Error::corruption(
            "list of keyspaces",
            &file,
            0,
            expected,
            "no file",
        ));
    }
    let list = TreeList::default();
    list.write(directory.path())?;
    Ok(list)
}

/// Removes tree directories that the list does not name: those of dropped or partially created keyspaces.
fn remove_unnamed(trees: &Path, list: &TreeList) -> Result<()> {
    let failed = |source| Error::io("list", trees, source);
    for entry in fs::read_dir(trees).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let id = name.and_then(|name| name.parse::<u64>().ok());
        let named = list.keyspaces.iter().any(|k| Some(k.id.0) == id);
        if id.is_some() && !named {
            fs::remove_dir_all(&path).map_err(|source| Error::io("remove", &path, source))?;
        }
    }
    Ok(())
}

/// Opens every tree of the list, in parallel.
fn open_trees(context: &TreeContext, list: &TreeList) -> Result<TreeMap> {
    let threads = parallelism();
    let share = list.keyspaces.len().div_ceil(threads).max(1);
    let opened = thread::scope(|scope| {
        let workers = list.keyspaces.chunks(share).map(|keyspaces| {
            scope.spawn(move || {
                let opened = keyspaces.iter();
                let opened = opened.map(|keyspace| match list.unflushed.contains(&keyspace.id) {
                    true => Tree::open_unflushed(context, keyspace.clone()),
                    false => Tree::open(context, keyspace.clone()),
                });
                opened.collect::<Result<Vec<_>>>()
            })
        });
        let workers = workers.collect::<Vec<_>>();
        let joined = workers.into_iter().map(|worker| worker.join());
        joined
            .map(|opened| opened.unwrap_or_else(|_| Err(panicked())))
            .collect::<Result<Vec<_>>>()
    })?;
    let trees = opened.into_iter().flatten();
    Ok(trees
        .map(|tree| (tree.keyspace.id, Arc::new(tree)))
        .collect())
}

fn panicked() -> Error {
    Error::Failed {
        reason: "recovery panicked".to_owned(),
    }
}

fn parallelism() -> usize {
    let available = thread::available_parallelism().map_or(1, usize::from);
    available.min(THREADS_MAX)
}

/// Checks that the log is neither missing nor shorter than the tables.
fn check_end(end: Option<LogEnd>, trees: &TreeMap, directory: &Path) -> Result<LogEnd> {
    let persisted = trees.values().map(|tree| tree.flushed_through()).max();
    let persisted = persisted.unwrap_or(0);
    let Some(end) = end else {
        if trees.is_empty() {
            return Ok(NO_LOG);
        }
        let expected = "at least one segment";
        return Err(Error::corruption("log", directory, 0, expected, "none"));
    };
    if end.last_sequence < persisted {
        let last = end.segments.last();
        return Err(Error::corruption(
            "log",
            last.map_or(directory, |segment| &segment.path),
            0,
            format!("batches up to sequence number {persisted}, the highest in tables"),
            format!("the last at {}", end.last_sequence),
        ));
    }
    Ok(end)
}

fn start_log(
    context: &TreeContext,
    end: LogEnd,
    mut highest: HashMap<u64, HighestSequences>,
) -> Result<Log> {
    let next_segment = end.segments.last().map_or(1, |segment| segment.id + 1);
    let sealed = end.segments.into_iter();
    let sealed = sealed.map(|segment| SealedSegment {
        highest: highest.remove(&segment.id).unwrap_or_default(),
        id: segment.id,
        path: segment.path,
        first_index: segment.first_index,
        bytes: segment.bytes,
        used_bytes: segment.used_bytes,
    });
    let start = LogStart {
        sealed: sealed.collect::<VecDeque<_>>(),
        next_segment,
        next_index: end.next_index,
        last_sequence: end.last_sequence,
    };
    Log::start(&context.directory.log(), &context.options, start)
}

/// One replayed operation to insert into a memtable.
struct ReplayedOperation<'a> {
    tree: &'a Arc<Tree>,
    key: Slice,
    value: Option<Slice>,
    sequence: u64,
}

/// Replays batches of the log into memtables.
struct Replayer<'a> {
    context: &'a TreeContext,
    trees: &'a TreeMap,
    list: &'a mut TreeList,
    /// Highest sequence number in the tables of any tree.
    persisted_max: u64,
    gathered: Vec<ReplayedOperation<'a>>,
    gathered_bytes: usize,
    highest: HashMap<u64, HighestSequences>,
    operations: u64,
}

impl<'a> Replayer<'a> {
    fn new(context: &'a TreeContext, trees: &'a TreeMap, list: &'a mut TreeList) -> Self {
        let persisted = trees.values().map(|tree| tree.flushed_through()).max();
        let persisted_max = persisted.unwrap_or(0);
        // Flushing draws numbers for versions, which must not collide with those of batches.
        context.sequence.fetch_max(persisted_max + 1);
        Self {
            context,
            trees,
            list,
            persisted_max,
            gathered: Vec::new(),
            gathered_bytes: 0,
            highest: HashMap::new(),
            operations: 0,
        }
    }

    /// Gathers the operations of one batch, except those already in tables or of dropped keyspaces.
    fn batch(&mut self, batch: &LogBatch<'_>) -> Result<()> {
        let mut view = None;
        let mut unknown = None;
        let highest = self.highest.entry(batch.segment).or_default();
        let decoded = payload::decode(batch.payload, |entry| {
            let Some(tree) = self.trees.get(&KeyspaceId(entry.keyspace)) else {
                if entry.keyspace >= self.list.next_id {
                    unknown = Some(entry.keyspace);
                }
                return;
            };
            highest.insert(tree.keyspace.id, batch.sequence);
            if batch.sequence <= tree.flushed_through() {
                return;
            }
            let view = view.get_or_insert_with(|| ByteView::new(batch.payload));
            self.gathered.push(ReplayedOperation {
                tree,
                key: Slice::from(view.slice(entry.key)),
                value: entry.value.map(|value| Slice::from(view.slice(value))),
                sequence: batch.sequence,
            });
        });
        let found = match (decoded, unknown) {
            (Some(()), None) => None,
            (None, _) => Some("other bytes".to_owned()),
            (_, Some(id)) => Some(format!(
                "an operation on keyspace {id}, which never existed"
            )),
        };
        if let Some(found) = found {
            let expected = "operations of a batch";
            return Err(Error::corruption(
                "log",
                batch.path,
                batch.offset,
                expected,
                found,
            ));
        }
        self.gathered_bytes += batch.payload.len();
        if self.gathered.len() >= GATHERED_OPERATIONS_MAX
            || self.gathered_bytes >= GATHERED_BYTES_MAX
        {
            self.insert_gathered()?;
        }
        Ok(())
    }

    /// Inserts the gathered operations, and flushes if memory is short.
    fn insert_gathered(&mut self) -> Result<()> {
        let mut operations = std::mem::take(&mut self.gathered);
        self.gathered_bytes = 0;
        self.operations += operations.len() as u64;
        // Adjacent keys share most of the search path in a memtable, which is then in the processor's cache.
        operations.sort_unstable_by(|a, b| {
            let (left, right) = (a.tree.keyspace.id, b.tree.keyspace.id);
            let keys = left.cmp(&right).then_with(|| a.key[..].cmp(&b.key[..]));
            keys.then_with(|| b.sequence.cmp(&a.sequence))
        });
        // There are no readers of older versions.
        operations.dedup_by(|a, b| a.tree.keyspace.id == b.tree.keyspace.id && a.key == b.key);
        let threads = parallelism();
        let share = operations.len().div_ceil(threads).max(1);
        let mut operations = operations.into_iter();
        let memory = &self.context.memory;
        thread::scope(|scope| {
            for _ in 0..threads {
                let part = operations.by_ref().take(share).collect::<Vec<_>>();
                scope.spawn(move || insert(part, memory));
            }
        });
        let last = self.highest.values().flat_map(|highest| highest.values());
        let last = last.copied().max().unwrap_or(0);
        self.context.sequence.fetch_max(last + 1);
        // A log below its cap fits into memory unflushed, so flush only above that.
        let limit = self.context.options.memory_bytes_max / 2 * 3;
        if memory.load(Ordering::Acquire) < limit {
            return Ok(());
        }
        let enough = self.context.options.memory_flush_bytes();
        let mut by_size = self.trees.values().collect::<Vec<_>>();
        by_size.sort_by_key(|tree| std::cmp::Reverse(tree.memory_bytes()));
        for tree in by_size {
            if memory.load(Ordering::Acquire) < enough {
                break;
            }
            let (through, any) = tree.rotate_alone();
            if any {
                self.list.begin_flushes(self.context, tree)?;
                tree.flush_sealed(self.context, NO_READERS)?;
                tree.tidy(NO_READERS)?;
            }
            tree.note_flushed(through);
        }
        Ok(())
    }
}

/// Inserts operations into the memtables of their trees.
fn insert(operations: Vec<ReplayedOperation<'_>>, memory: &AtomicU64) {
    let mut memtable = None;
    let mut added = 0;
    for operation in operations {
        let tree = operation.tree;
        let id = tree.keyspace.id;
        let known = memtable.take().filter(|(of, _)| *of == id);
        let (_, table) =
            memtable.insert(known.unwrap_or_else(|| (id, tree.inner.active_memtable())));
        let entry = memtable_entry(operation.key, operation.value, operation.sequence);
        added += table.insert(entry).0;
        tree.note_applied(operation.sequence);
    }
    memory.fetch_add(added, Ordering::AcqRel);
}
