//! The numbered objects: which backups there are, and how one comes into being. The order of requests is explained in the
//! head of [`super`].

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use nilometer_storage::{Error, LogPart, Result};

use super::manifest::{MANIFEST_BYTES_MAX, Manifest};
use super::objects::{Listed, Objects};

const BEGUN: &str = "begun";
const MANIFESTS: &str = "manifests";
const REMOVED: &str = "removed";
const LOG: &str = "log";

/// The contents of the manifest of a backup that was given up.
const ABANDONED: &[u8] = b"abandoned\n";

/// Digits of a number, so that names are in the order of numbers.
const DIGITS: usize = 20;

/// The backups of a store.
pub(super) struct Catalog {
    pub(super) objects: Objects,
}

/// A part of the log, as its name describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartName {
    pub(super) run: u64,
    /// Index of its first batch.
    pub(super) first: u64,
    /// Index after its last batch.
    pub(super) next: u64,
    /// The last moment in it.
    pub(super) time_ms: i64,
}

impl PartName {
    pub(super) fn name(&self) -> String {
        let Self {
            run,
            first,
            next,
            time_ms,
        } = self;
        format!("{LOG}/{run:0DIGITS$}/{first:0DIGITS$}-{next:0DIGITS$}-{time_ms}")
    }

    /// Parses a name below the folder of all logs.
    fn parse(name: &str) -> Option<Self> {
        let (run, part) = name.split_once('/')?;
        let mut numbers = part.splitn(3, '-');
        Some(Self {
            run: run.parse().ok()?,
            first: numbers.next()?.parse().ok()?,
            next: numbers.next()?.parse().ok()?,
            time_ms: numbers.next()?.parse().ok()?,
        })
    }
}

impl Catalog {
    pub(super) fn new(objects: Objects) -> Self {
        Self { objects }
    }

    /// Takes the next number.
    pub(super) async fn begin(&self) -> Result<u64> {
        let random = RandomState::new().build_hasher().finish();
        let name = format!("process {} {random:016x}\n", std::process::id());
        let contents = Bytes::from(name);
        let last = self.numbers(BEGUN).await?.last().copied();
        let mut number = last.unwrap_or(0) + 1;
        while !self
            .objects
            .create(&named(BEGUN, number), &contents)
            .await?
        {
            number += 1;
        }
        Ok(number)
    }

    /// Completes a backup.
    pub(super) async fn complete(&self, manifest: &Manifest) -> Result<()> {
        let name = named(MANIFESTS, manifest.number);
        let contents = Bytes::from(manifest.encode());
        match self.objects.create(&name, &contents).await? {
            true => Ok(()),
            false => Err(Error::Store {
                reason: format!(
                    "backup {} took so long that another one has taken it for dead; make it again",
                    manifest.number
                ),
            }),
        }
    }

    /// Gives a backup up, unless it is complete.
    pub(super) async fn abandon(&self, number: u64) -> Result<()> {
        let contents = Bytes::from_static(ABANDONED);
        let name = named(MANIFESTS, number);
        self.objects.create(&name, &contents).await.map(drop)
    }

    /// Returns the numbers of backups that are complete or given up, and not removed, ascending.
    pub(super) async fn usable(&self) -> Result<Vec<u64>> {
        // In this order: a backup that is removed completely between the two lists is in neither.
        let removed = self.numbers(REMOVED).await?;
        let mut numbers = self.numbers(MANIFESTS).await?;
        numbers.retain(|number| !removed.contains(number));
        Ok(numbers.into_iter().collect())
    }

    /// Reads a manifest. `None` if the backup is absent or was given up.
    pub(super) async fn manifest(&self, number: u64) -> Result<Option<Manifest>> {
        let name = named(MANIFESTS, number);
        let Some(bytes) = self.objects.size(&name).await? else {
            return Ok(None);
        };
        if bytes > MANIFEST_BYTES_MAX {
            return Err(self.damaged(&name, format!("{bytes} bytes")));
        }
        let Some(bytes) = self.objects.get(&name).await? else {
            return Ok(None);
        };
        if bytes[..] == *ABANDONED {
            return Ok(None);
        }
        let manifest = Manifest::decode(&bytes).filter(|manifest| manifest.number == number);
        match manifest {
            Some(manifest) => Ok(Some(manifest)),
            None => Err(self.damaged(&name, "other bytes".to_owned())),
        }
    }

    fn damaged(&self, name: &str, found: String) -> Error {
        Error::Corruption {
            what: "backup",
            file: self.objects.path(name).to_string().into(),
            offset: 0,
            expected: "a manifest with its checksum".to_owned(),
            found,
        }
    }

    /// Returns the last backup whose objects a new one may use.
    pub(super) async fn last_manifest(&self) -> Result<Option<Manifest>> {
        for number in self.usable().await?.into_iter().rev() {
            match self.manifest(number).await {
                // A damaged manifest names nothing that could be used.
                Ok(None) | Err(Error::Corruption { .. }) => {}
                found => return found,
            }
        }
        Ok(None)
    }

    /// Marks a backup as removed.
    pub(super) async fn mark_removed(&self, number: u64) -> Result<()> {
        let contents = Bytes::from_static(b"removed\n");
        let name = named(REMOVED, number);
        self.objects.create(&name, &contents).await.map(drop)
    }

    /// Returns the numbers of backups that are marked as removed.
    pub(super) async fn removed(&self) -> Result<BTreeSet<u64>> {
        self.numbers(REMOVED).await
    }

    /// Deletes what is left of a backup whose files are deleted, also the mark that it is removed if `with_mark`.
    pub(super) async fn forget(&self, number: u64, with_mark: bool) -> Result<()> {
        let mut names = vec![named(MANIFESTS, number), named(BEGUN, number)];
        if with_mark {
            names.push(named(REMOVED, number));
        }
        self.objects.delete(&names).await
    }

    /// Returns the numbers that were taken, and those of backups that are neither complete nor given up, with their age by
    /// the clock of the store when the last number was taken.
    pub(super) async fn begun(&self) -> Result<(BTreeSet<u64>, Vec<(u64, Duration)>)> {
        let begun = self.objects.list(BEGUN).await?;
        let ended = self.numbers(MANIFESTS).await?;
        let now = begun.iter().map(|listed| listed.modified).max();
        let (mut numbers, mut unfinished) = (BTreeSet::new(), Vec::new());
        for listed in &begun {
            let Some(number) = number_of(listed) else {
                continue;
            };
            numbers.insert(number);
            if !ended.contains(&number) {
                let age = now.and_then(|now| now.duration_since(listed.modified).ok());
                unfinished.push((number, age.unwrap_or_default()));
            }
        }
        Ok((numbers, unfinished))
    }

    /// Lists the parts of all logs, or of one, in order.
    pub(super) async fn parts(&self, run: Option<u64>) -> Result<Vec<PartName>> {
        let folder = run.map_or(LOG.to_owned(), |run| named(LOG, run));
        let listed = self.objects.list(&folder).await?;
        let parts = listed.iter().filter_map(|listed| match run {
            None => PartName::parse(&listed.name),
            Some(run) => PartName::parse(&format!("{run}/{}", listed.name)),
        });
        let mut parts = parts.collect::<Vec<_>>();
        parts.sort_by_key(|part| (part.run, part.first, part.next));
        Ok(parts)
    }

    /// Lists the parts of the log behind a backup, up to the first gap.
    pub(super) async fn parts_behind(&self, manifest: &Manifest) -> Result<Vec<PartName>> {
        let Some(run) = manifest.run else {
            return Ok(Vec::new());
        };
        let mut next = manifest.end.next_index;
        let mut behind = Vec::new();
        for part in self.parts(Some(run)).await? {
            if part.next <= next {
                continue;
            }
            if part.first > next {
                break;
            }
            next = part.next;
            behind.push(part);
        }
        Ok(behind)
    }

    /// Reads a part of the log.
    pub(super) async fn part(&self, part: &PartName) -> Result<LogPart> {
        let name = part.name();
        let damaged = |found: &str| Error::Corruption {
            what: "part of the log",
            file: self.objects.path(&name).to_string().into(),
            offset: 0,
            expected: format!("batches {} to {}", part.first, part.next),
            found: found.to_owned(),
        };
        let bytes = self.objects.get(&name).await?;
        let bytes = bytes.ok_or_else(|| damaged("no object"))?;
        let is_named =
            |found: &LogPart| (found.begin.next_index, found.next_index) == (part.first, part.next);
        let found = LogPart::decode(&bytes).filter(is_named);
        found.ok_or_else(|| damaged("other bytes"))
    }

    async fn numbers(&self, folder: &str) -> Result<BTreeSet<u64>> {
        let listed = self.objects.list(folder).await?;
        Ok(listed.iter().filter_map(number_of).collect())
    }
}

fn number_of(listed: &Listed) -> Option<u64> {
    listed.name.parse().ok()
}

fn named(folder: &str, number: u64) -> String {
    format!("{folder}/{number:0DIGITS$}")
}
