//! Backups in an object store: by the commands of the program, of a running server, and continuously.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use nilometer::Database;
use nilometer::database::BackupSource;
use nilometer::services::ObjectBackupRequest;
use nilometer_bson::{Document, doc};
use nilometer_cluster::{
    BackupInfo, BackupProgress, BackupStore, ContinuousBackup, ContinuousEvent, ContinuousOptions,
    Removed, RestorePoint, Retention, StorageUrl,
};
use tracing::{error, info, warn};

use crate::cli::Failure;
use crate::cli::args::KeepArgs;
use crate::cli::backups::{
    CheckedBackups, ContinuousSettings, MadeBackup, Point, RemovedBackups, RestoredDatabase,
};

/// The backups at a URL.
#[derive(Debug)]
pub struct ObjectBackups(StorageUrl);

impl fmt::Display for ObjectBackups {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The continuous backup of a server, until it is dropped.
pub(in crate::cli) struct RunningBackup(ContinuousBackup);

impl RunningBackup {
    /// Stores the end of the log.
    pub(in crate::cli) fn stop(self) {
        self.0.stop();
    }
}

impl ObjectBackups {
    /// Parses a URL. Reads nothing from the store.
    pub(in crate::cli) fn new(
        url: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
    ) -> Result<Self, Failure> {
        let url = StorageUrl::parse(url, endpoint, region);
        let url = url.map_err(|error| Failure::Options(error.to_string()))?;
        Ok(Self(url))
    }

    /// Makes a backup.
    pub(in crate::cli) fn back_up(&self, database: &Database) -> Result<MadeBackup, Failure> {
        let source = database.backup_source();
        let source = source.ok_or_else(|| self.failure("the database has no directory"))?;
        let store = self.0.backups().map_err(|error| self.failed(error))?;
        let bar = progress_bar()?;
        let made = store.back_up(&source, &mut |progress| {
            show(&bar, progress);
            true
        });
        bar.finish_and_clear();
        made.map(made_backup).map_err(|error| self.failed(error))
    }

    /// Removes old backups.
    pub(in crate::cli) fn remove_old(&self, keep: &KeepArgs) -> Result<RemovedBackups, Failure> {
        if keep.keep.is_none() && keep.keep_days.is_none() {
            return Ok(RemovedBackups::default());
        }
        let store = self.0.backups().map_err(|error| self.failed(error))?;
        let removed = store.remove_old(&retention(keep));
        let removed = removed.map_err(|error| self.failed(error))?;
        Ok(RemovedBackups {
            numbers: removed.backups,
            is_deferred: removed.is_deferred,
        })
    }

    /// Lists the backups.
    pub(in crate::cli) fn list(&self) -> Result<Vec<MadeBackup>, Failure> {
        let listed = self.existing()?.list();
        let listed = listed.map_err(|error| self.failed(error))?;
        Ok(listed.into_iter().map(made_backup).collect())
    }

    /// Makes a database in a directory.
    pub(in crate::cli) fn restore(
        &self,
        target: &Path,
        point: Point,
    ) -> Result<RestoredDatabase, Failure> {
        let point = match point {
            Point::Latest => RestorePoint::Latest,
            Point::Number(number) => RestorePoint::Number(number),
            Point::Time(time_ms) => RestorePoint::Time(time_ms),
        };
        let bar = progress_bar()?;
        let restored = self.existing()?.restore(target, point, &mut |progress| {
            show(&bar, progress);
            true
        });
        bar.finish_and_clear();
        let restored = restored.map_err(|error| self.failed(error))?;
        Ok(RestoredDatabase {
            number: restored.number,
            time_ms: restored.time_ms,
            files: restored.files,
            bytes: restored.bytes,
            batches: restored.batches,
        })
    }

    /// Reads every object.
    pub(in crate::cli) fn verify(&self) -> Result<CheckedBackups, Failure> {
        let bar = progress_bar()?;
        let checked = self.existing()?.verify(&mut |progress| {
            show(&bar, progress);
            true
        });
        bar.finish_and_clear();
        let checked = checked.map_err(|error| self.failed(error))?;
        Ok(CheckedBackups {
            backups: checked.backups,
            objects: checked.objects,
            parts: checked.parts,
            bytes: checked.bytes,
            problems: checked.problems,
        })
    }

    /// Starts the continuous backup of a database.
    pub(in crate::cli) fn start(
        &self,
        settings: &ContinuousSettings,
        database: &Arc<Database>,
    ) -> Result<RunningBackup, Failure> {
        let source = database.backup_source();
        let source = source.ok_or_else(|| self.failure("the database has no directory"))?;
        let store = self.0.backups().map_err(|error| self.failed(error))?;
        let options = ContinuousOptions {
            interval: settings.interval,
            full_interval: settings.full_interval,
            retention: retention(&settings.keep),
            ..ContinuousOptions::default()
        };
        let continuous = ContinuousBackup::start(store, source, options, Box::new(log_event));
        let continuous = continuous.map_err(|error| self.failed(error))?;
        Ok(RunningBackup(continuous))
    }

    /// Lets the command `nilometerBackup` take URLs.
    pub(in crate::cli) fn answer_commands(database: &Database) {
        let back_up = Box::new(
            |source,
             request: &ObjectBackupRequest,
             interrupt: &dyn Fn() -> nilometer::Result<()>| {
                let wrong = |text: String| nilometer::Error::bad_value(text);
                let (endpoint, region) = (request.endpoint.as_deref(), request.region.as_deref());
                let url = StorageUrl::parse(&request.url, endpoint, region);
                let store = url.map_err(|error| wrong(error.to_string()))?.backups()?;
                let retention = Retention {
                    keep: request.keep,
                    keep_days: request.keep_days,
                };
                run_command(&store, &source, retention, interrupt)
            },
        );
        // The database is new, so it is not set yet.
        drop(database.services().object_backup.set(back_up));
    }

    fn existing(&self) -> Result<BackupStore, Failure> {
        self.0
            .existing_backups()
            .map_err(|error| self.failed(error))
    }

    fn failed(&self, error: impl Into<nilometer::Error>) -> Failure {
        let error: nilometer::Error = error.into();
        match error.code {
            nilometer::ErrorCode::DataCorruptionDetected => Failure::Damaged(error.message),
            _ => self.failure(error.message),
        }
    }

    fn failure(&self, error: impl fmt::Display) -> Failure {
        Failure::Other(format!("backups at {}: {error}", self.0))
    }
}

/// Makes a backup for a client, and removes old ones.
fn run_command(
    store: &BackupStore,
    source: &BackupSource,
    retention: Retention,
    interrupt: &dyn Fn() -> nilometer::Result<()>,
) -> nilometer::Result<Document> {
    let mut interrupted = None;
    let made = store.back_up(source, &mut |_| {
        interrupted = interrupt().err();
        interrupted.is_none()
    });
    if let Some(error) = interrupted {
        return Err(error);
    }
    let made = made?;
    let removed = store.remove_old(&retention)?;
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let numbers = removed.backups.iter().map(|number| count(*number));
    Ok(doc! {
        "backup": count(made.number),
        "files": count(made.files),
        "bytes": count(made.bytes),
        "newBytes": count(made.new_bytes),
        "removed": numbers.map(nilometer_bson::Value::Int64).collect::<nilometer_bson::Array>(),
        "removalIsDeferred": removed.is_deferred,
    })
}

/// Logs what the continuous backup does.
fn log_event(event: ContinuousEvent) {
    match event {
        ContinuousEvent::Completed(made) => info!(
            c = "STORAGE",
            id = 22_450,
            number = made.number,
            files = made.files,
            newBytes = made.new_bytes,
            "The files of the database are backed up"
        ),
        ContinuousEvent::Removed(Removed {
            backups,
            objects,
            is_deferred,
        }) => info!(
            c = "STORAGE",
            id = 22_451,
            backups = ?backups,
            objects,
            isDeferred = is_deferred,
            "Removed old backups"
        ),
        ContinuousEvent::Failing(problem) => warn!(
            c = "STORAGE",
            id = 22_452,
            error = %problem,
            "The backup fails; it is tried again"
        ),
        ContinuousEvent::Recovered => {
            info!(c = "STORAGE", id = 22_453, "The backup continues");
        }
        ContinuousEvent::Gap(problem) => error!(
            c = "STORAGE",
            id = 22_454,
            error = %problem,
            "The log was removed before it was backed up; a new backup begins, and the time until then cannot be restored"
        ),
    }
}

fn retention(keep: &KeepArgs) -> Retention {
    Retention {
        keep: keep.keep,
        keep_days: keep.keep_days,
    }
}

fn made_backup(info: BackupInfo) -> MadeBackup {
    MadeBackup {
        number: info.number,
        time_ms: info.time_ms,
        files: info.files,
        bytes: info.bytes,
        new_bytes: info.new_bytes,
        until_ms: info.until_ms,
    }
}

/// Returns the progress at a terminal.
fn progress_bar() -> Result<ProgressBar, Failure> {
    let style = ProgressStyle::with_template("{spinner} {elapsed} {bytes} {bytes_per_sec} {msg}");
    let style = style.map_err(|error| Failure::Other(error.to_string()))?;
    Ok(ProgressBar::new_spinner().with_style(style))
}

fn show(bar: &ProgressBar, progress: &BackupProgress) {
    bar.set_position(progress.bytes);
    bar.set_message(format!(
        "{} of {} files",
        progress.files_done, progress.files
    ));
}
