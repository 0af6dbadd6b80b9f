//! Making a database directory of a backup, and of the log behind it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use nilometer_storage::{Error, Result, complete_restore};

use super::catalog::PartName;
use super::manifest::{FileObject, Manifest, StoredFile, Summing};
use super::objects::{Objects, file_error, in_parallel};
use super::{BackupProgress, BackupReport, BackupStore, TRANSFERS};

/// What to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestorePoint {
    /// The newest state.
    Latest,
    /// The files of one backup, without the log behind them.
    Number(u64),
    /// The state at a time, in milliseconds since 1970.
    Time(i64),
}

/// What was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The backup with the files.
    pub number: u64,
    /// The time of the state, in milliseconds since 1970: at most the one that was asked for.
    pub time_ms: i64,
    /// Files written.
    pub files: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Batches of the log that were added to them.
    pub batches: u64,
}

/// A backup and the part of its log that leads to a time.
struct Plan {
    manifest: Manifest,
    parts: Vec<PartName>,
    /// The batch before which the log ends.
    until: Option<u64>,
    time_ms: i64,
}

impl BackupStore {
    /// Makes a database in the empty or absent directory `target`.
    pub fn restore(
        &self,
        target: &Path,
        point: RestorePoint,
        report: &mut BackupReport<'_>,
    ) -> Result<Restored> {
        make_empty(target)?;
        let plan = self.runtime.block_on(self.plan(point))?;
        let mut progress = BackupProgress {
            files: plan.manifest.files.len() as u64,
            ..BackupProgress::default()
        };
        let received = self.download(&plan.manifest, target, &mut progress, report);
        self.runtime.block_on(received)?;
        let begin = plan.manifest.end;
        let mut parts = plan.parts.iter().map(|part| {
            let part = self.runtime.block_on(self.catalog.part(part))?;
            progress.bytes += part.batch_bytes();
            progress.tell(report)?;
            Ok(part)
        });
        let format = plan.manifest.format_version;
        let end = complete_restore(target, format, begin, &mut parts, plan.until)?;
        Ok(Restored {
            number: plan.manifest.number,
            time_ms: plan.time_ms,
            files: progress.files,
            bytes: progress.bytes,
            batches: end.next_index - begin.next_index,
        })
    }

    async fn plan(&self, point: RestorePoint) -> Result<Plan> {
        let none = |why: String| Error::Store { reason: why };
        let limit = match point {
            RestorePoint::Number(number) => {
                let manifest = self.catalog.manifest(number).await?;
                let manifest =
                    manifest.ok_or_else(|| none(format!("there is no backup {number}")))?;
                return Ok(Plan {
                    time_ms: manifest.time_ms,
                    manifest,
                    parts: Vec::new(),
                    until: None,
                });
            }
            RestorePoint::Latest => i64::MAX,
            RestorePoint::Time(time_ms) => time_ms,
        };
        // A damaged manifest is no reason not to use another one.
        let (manifests, mut problems) = self.readable_manifests().await?;
        let is_empty = manifests.is_empty();
        // The newest of each run leads to each of its moments the soonest.
        let mut newest = BTreeMap::<Option<u64>, Manifest>::new();
        for manifest in manifests {
            let is_later = |other: &Manifest| manifest.time_ms >= other.time_ms;
            if manifest.time_ms <= limit && newest.get(&manifest.run).is_none_or(is_later) {
                newest.insert(manifest.run, manifest);
            }
        }
        let mut best = None::<Plan>;
        for manifest in newest.into_values() {
            let plan = self.plan_until(manifest, limit).await?;
            let is_better = |best: &Plan| {
                (plan.time_ms, plan.manifest.time_ms) >= (best.time_ms, best.manifest.time_ms)
            };
            if best.as_ref().is_none_or(is_better) {
                best = Some(plan);
            }
        }
        best.ok_or_else(|| match (is_empty, problems.pop()) {
            (true, Some(problem)) => none(problem),
            (true, None) => none("there is no backup".to_owned()),
            (false, _) => none("every backup is of a later time".to_owned()),
        })
    }

    /// Plans to restore the last state up to a time from one backup.
    async fn plan_until(&self, manifest: Manifest, limit_ms: i64) -> Result<Plan> {
        let behind = self.catalog.parts_behind(&manifest).await?;
        let whole = behind
            .iter()
            .take_while(|part| part.time_ms <= limit_ms)
            .count();
        let mut plan = Plan {
            time_ms: manifest.time_ms,
            manifest,
            parts: behind,
            until: None,
        };
        if let Some(last) = plan.parts.get(..whole).and_then(<[_]>::last) {
            plan.time_ms = plan.time_ms.max(last.time_ms);
        }
        let Some(divided) = plan.parts.get(whole) else {
            return Ok(plan);
        };
        let begin = plan.manifest.end.next_index.max(divided.first);
        let divided = self.catalog.part(divided).await?;
        let mut moments = divided.moments.iter().rev();
        let moment = moments.find(|moment| moment.time_ms <= limit_ms);
        match moment.filter(|moment| moment.next_index > begin) {
            Some(moment) => {
                plan.until = Some(moment.next_index);
                plan.time_ms = plan.time_ms.max(moment.time_ms);
                plan.parts.truncate(whole + 1);
            }
            None => plan.parts.truncate(whole),
        }
        Ok(plan)
    }

    async fn download(
        &self,
        manifest: &Manifest,
        target: &Path,
        progress: &mut BackupProgress,
        report: &mut BackupReport<'_>,
    ) -> Result<()> {
        let mut by_object = BTreeMap::<FileObject, Vec<&StoredFile>>::new();
        for file in &manifest.files {
            let path = target.join(&file.path);
            if let Some(folder) = path.parent() {
                let created = fs::create_dir_all(folder);
                created.map_err(|source| file_error("create", folder, source))?;
            }
            by_object.entry(file.object).or_default().push(file);
        }
        let objects = &self.catalog.objects;
        let jobs = by_object
            .values()
            .map(|files| fetch_files(objects, target, files));
        let each = |(files, bytes): (u64, u64)| {
            progress.files_done += files;
            progress.bytes += bytes;
            progress.tell(report)
        };
        in_parallel(jobs, TRANSFERS, each).await
    }
}

/// Creates an empty directory.
fn make_empty(target: &Path) -> Result<()> {
    let created = create_private(target);
    created.map_err(|source| file_error("create", target, source))?;
    let entries = fs::read_dir(target).map_err(|source| file_error("list", target, source))?;
    match entries.count() {
        0 => Ok(()),
        _ => Err(Error::NotEmpty {
            path: target.to_path_buf(),
        }),
    }
}

fn create_private(path: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(path)
}

/// Fetches the files of one object. Returns their number and the bytes.
async fn fetch_files(
    objects: &Objects,
    target: &Path,
    files: &[&StoredFile],
) -> Result<(u64, u64)> {
    let mut received = 0;
    let pack = objects.read_pack(files).await?;
    for file in files {
        let path = target.join(&file.path);
        let mut writer = FileWriter::create(path)?;
        let range = file.offset..file.offset.saturating_add(file.stored_bytes);
        let name = file.object.name();
        let is_there = match pack.as_ref().and_then(|pack| pack.file(file)) {
            Some(bytes) => writer.write(bytes).map(|()| true)?,
            None => {
                objects
                    .read(&name, range, |piece| writer.write(piece))
                    .await?
            }
        };
        let found = match is_there {
            true => writer.sum.finish(),
            false => return Err(missing(objects, file)),
        };
        if found != file.sum {
            return Err(Error::Corruption {
                what: "object",
                file: PathBuf::from(objects.path(&name).to_string()),
                offset: file.offset,
                expected: format!("{} with the SHA-256 {}", file.path, file.sum),
                found: found.to_string(),
            });
        }
        let finish = || {
            writer.file.set_len(file.bytes)?;
            writer.file.sync_all()
        };
        finish().map_err(|source| file_error("write", &writer.path, source))?;
        received += file.stored_bytes;
    }
    Ok((files.len() as u64, received))
}

/// Returns the error of an object that is not there.
fn missing(objects: &Objects, file: &StoredFile) -> Error {
    Error::Corruption {
        what: "object",
        file: PathBuf::from(objects.path(&file.object.name()).to_string()),
        offset: 0,
        expected: format!("the file {}", file.path),
        found: "no object".to_owned(),
    }
}

/// Writes a new file.
struct FileWriter {
    file: File,
    path: PathBuf,
    sum: Summing,
}

impl FileWriter {
    fn create(path: PathBuf) -> Result<Self> {
        let mut options = fs::OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.write(true).create_new(true).open(&path);
        let file = file.map_err(|source| file_error("create", &path, source))?;
        Ok(Self {
            file,
            path,
            sum: Summing::default(),
        })
    }

    fn write(&mut self, piece: &[u8]) -> Result<()> {
        self.sum.add(piece);
        let written = self.file.write_all(piece);
        written.map_err(|source| file_error("write", &self.path, source))
    }
}
