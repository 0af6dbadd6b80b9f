//! Reading every object of every backup, and comparing it with the manifests.

use std::collections::{BTreeMap, BTreeSet};

use nilometer_storage::{Error, LogPosition, Result};

use super::manifest::{FileObject, Manifest, StoredFile, Sum, Summing};
use super::objects::in_parallel;
use super::{BackupProgress, BackupReport, BackupStore, TRANSFERS};

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackupVerification {
    /// Backups.
    pub backups: u64,
    /// Objects with files.
    pub objects: u64,
    /// Parts of the log.
    pub parts: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// What is wrong, one line each: the object, what it must have, and the backups that need it.
    pub problems: Vec<String>,
}

/// The files that an object must have, by their place in it.
type Slices = BTreeMap<(u64, u64, Sum), (StoredFile, BTreeSet<u64>)>;

impl BackupStore {
    /// Reads every object of every backup. What is wrong is part of the result; an error means that the store failed.
    pub fn verify(&self, report: &mut BackupReport<'_>) -> Result<BackupVerification> {
        self.runtime.block_on(self.try_verify(report))
    }

    async fn try_verify(&self, report: &mut BackupReport<'_>) -> Result<BackupVerification> {
        let (manifests, problems) = self.readable_manifests().await?;
        let mut found = BackupVerification {
            backups: (manifests.len() + problems.len()) as u64,
            problems,
            ..BackupVerification::default()
        };
        let mut objects = BTreeMap::<FileObject, Slices>::new();
        for manifest in &manifests {
            for file in &manifest.files {
                let slices = objects.entry(file.object).or_default();
                let place = (file.offset, file.stored_bytes, file.sum);
                let slice = slices.entry(place);
                let slice = slice.or_insert_with(|| (file.clone(), BTreeSet::new()));
                slice.1.insert(manifest.number);
            }
        }
        let mut progress = BackupProgress {
            files: objects.len() as u64,
            ..BackupProgress::default()
        };
        found.objects = objects.len() as u64;
        let jobs = objects.values().map(|slices| self.check_object(slices));
        let each = |(bytes, problems): (u64, Vec<String>)| {
            found.bytes += bytes;
            found.problems.extend(problems);
            progress.files_done += 1;
            progress.bytes = found.bytes;
            progress.tell(report)
        };
        in_parallel(jobs, TRANSFERS, each).await?;
        self.check_logs(&manifests, &mut found).await?;
        Ok(found)
    }

    /// Reads the files of one object. Returns the bytes read, and what is wrong.
    async fn check_object(&self, slices: &Slices) -> Result<(u64, Vec<String>)> {
        let objects = &self.catalog.objects;
        let (mut read, mut problems) = (0, Vec::new());
        let files = slices.values().map(|(file, _)| file).collect::<Vec<_>>();
        let Some(first) = files.first() else {
            return Ok((read, problems));
        };
        let name = first.object.name();
        let path = objects.path(&name);
        let all = slices.values().flat_map(|(_, backups)| backups);
        let all = all.copied().collect::<BTreeSet<_>>();
        let Some(size) = objects.size(&name).await? else {
            let paths = files.iter().map(|file| file.path.as_str());
            problems.push(format!(
                "{path} is missing: it has {} and is needed by {}",
                shortened(&paths.collect::<Vec<_>>()),
                named(&all)
            ));
            return Ok((read, problems));
        };
        let pack = objects.read_pack(&files).await.ok().flatten();
        for (file, backups) in slices.values() {
            let mut sum = Summing::default();
            let end = file.offset.saturating_add(file.stored_bytes);
            let each = |piece: &[u8]| {
                sum.add(piece);
                read += piece.len() as u64;
                Ok(())
            };
            let found = match pack.as_ref().and_then(|pack| pack.file(file)) {
                Some(bytes) => {
                    let mut each = each;
                    each(bytes)?;
                    sum.finish().to_string()
                }
                None if end > size => format!("an object of {size} bytes"),
                None => {
                    objects.read(&name, file.offset..end, each).await?;
                    sum.finish().to_string()
                }
            };
            if found != file.sum.to_string() {
                problems.push(format!(
                    "{path} is damaged: of {}, needed by {}, the SHA-256 is {}, not {found}",
                    file.path,
                    named(backups),
                    file.sum
                ));
            }
        }
        Ok((read, problems))
    }

    /// Reads the parts of the log behind the backups of the continuous mode.
    async fn check_logs(
        &self,
        manifests: &[Manifest],
        found: &mut BackupVerification,
    ) -> Result<()> {
        let runs = manifests.iter().filter_map(|manifest| manifest.run);
        for run in runs.collect::<BTreeSet<_>>() {
            let of_run = manifests
                .iter()
                .filter(|manifest| manifest.run == Some(run));
            let Some(oldest) = of_run.min_by_key(|manifest| manifest.end.next_index) else {
                continue;
            };
            let mut at = oldest.end;
            for name in self.catalog.parts(Some(run)).await? {
                if name.next <= at.next_index {
                    continue;
                }
                found.parts += 1;
                if name.first > at.next_index {
                    found.problems.push(format!(
                        "the log of backup {run} has no batches {} to {}; later moments cannot be restored from it",
                        at.next_index,
                        name.first - 1
                    ));
                    break;
                }
                match self.catalog.part(&name).await {
                    Ok(part) => {
                        found.bytes += part.batch_bytes();
                        if part.begin.next_index == at.next_index && part.begin != at {
                            let path = self.catalog.objects.path(&name.name());
                            found
                                .problems
                                .push(format!("{path} does not continue the log"));
                        }
                        at = part.end().unwrap_or(LogPosition {
                            next_index: name.next,
                            ..at
                        });
                    }
                    Err(error @ Error::Corruption { .. }) => {
                        let why = format!("{error}; later moments cannot be restored from it");
                        found.problems.push(why);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

/// Most names in one line.
const NAMES_MAX: usize = 5;

fn named(backups: &BTreeSet<u64>) -> String {
    let numbers = backups.iter().map(u64::to_string).collect::<Vec<_>>();
    let numbers = numbers.iter().map(String::as_str).collect::<Vec<_>>();
    match numbers.len() {
        1 => format!("backup {}", shortened(&numbers)),
        _ => format!("backups {}", shortened(&numbers)),
    }
}

fn shortened(names: &[&str]) -> String {
    let first = names.get(..NAMES_MAX).unwrap_or(names).join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
