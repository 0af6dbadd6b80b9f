//! `nilometer backup`, `backups`, `restore`, `verify` and `inspect` with the URL of an object store, and `serve --backup`.
//!
//! With a directory these commands are those of [`upkeep`]. What is done in the store is behind
//! [`ObjectBackups`].

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use nilometer::Database;
use nilometer_bson::extjson::{format_date, parse_date};
use nilometer_bson::{DocumentBuilder, Value};

use super::Failure;
use super::args::{self, KeepArgs, StoreArgs};
use super::object_storage::{ObjectBackups, ObjectStorage, RunningBackup, StoredDatabase};
use super::storage::ObjectStorageOptions;
use super::upkeep::{self, check_is_there, explain_open, size};
use crate::machine::make_new_files_private;

type Done = Result<(), Failure>;

/// Most seconds between two parts of the log.
const INTERVAL_SECS_MAX: u32 = 24 * 60 * 60;

/// Most hours between two backups of the files.
const FULL_INTERVAL_HOURS_MAX: u32 = 24 * 366;

/// Seconds between two parts of the log by default.
const INTERVAL_SECS: u32 = 10;

/// Hours between two backups of the files by default.
const FULL_INTERVAL_HOURS: u32 = 24;

/// A backup, as a command reports it.
pub(super) struct MadeBackup {
    pub(super) number: u64,
    pub(super) time_ms: i64,
    pub(super) files: u64,
    /// Bytes of all its files.
    pub(super) bytes: u64,
    /// Bytes that no earlier backup had.
    pub(super) new_bytes: u64,
    /// The last moment of its log.
    pub(super) until_ms: Option<i64>,
}

/// The backups that went.
#[derive(Default)]
pub(super) struct RemovedBackups {
    pub(super) numbers: Vec<u64>,
    pub(super) is_deferred: bool,
}

/// What to restore.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "only object storage reads them")
)]
pub(super) enum Point {
    Latest,
    Number(u64),
    Time(i64),
}

/// A database that was restored.
pub(super) struct RestoredDatabase {
    pub(super) number: u64,
    pub(super) time_ms: i64,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) batches: u64,
}

/// The result of reading all backups.
pub(super) struct CheckedBackups {
    pub(super) backups: u64,
    pub(super) objects: u64,
    pub(super) parts: u64,
    pub(super) bytes: u64,
    pub(super) problems: Vec<String>,
}

/// Returns the text of a URL; `None` for a directory.
fn url(place: &Path) -> Option<&str> {
    place.to_str().filter(|text| text.contains("://"))
}

/// Fails if an option that needs a URL is given with a directory.
fn check_directory(options: &[(&str, bool)]) -> Done {
    match options.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::Options(format!(
            "{name} needs a URL, such as s3://bucket/prefix, not a directory"
        ))),
    }
}

fn store_options(store: &StoreArgs) -> [(&'static str, bool); 2] {
    [
        ("--storageEndpoint", store.endpoint.is_some()),
        ("--storageRegion", store.region.is_some()),
    ]
}

/// Returns the options that say which database of a store is meant.
fn database_options(store: &StoreArgs, partition: Option<&str>) -> [(&'static str, bool); 3] {
    let [endpoint, region] = store_options(store);
    [endpoint, region, ("--partition", partition.is_some())]
}

fn backups_at(url: &str, store: &StoreArgs) -> Result<ObjectBackups, Failure> {
    ObjectBackups::new(url, store.endpoint.as_deref(), store.region.as_deref())
}

/// Backs a database up, served or not.
pub(super) fn backup(given: &args::Backup) -> Done {
    let Some(url) = url(&given.target) else {
        check_directory(&store_options(&given.store))?;
        let keep = given.keep;
        check_directory(&[
            ("--keep", keep.keep.is_some()),
            ("--keepDays", keep.keep_days.is_some()),
        ])?;
        return upkeep::backup(given);
    };
    let mut out = std::io::stdout().lock();
    let Some(path) = &given.dbpath else {
        let command = backup_command(url, given);
        let mut server = given.server.open()?;
        let reply = server.run("admin", &command)?;
        let number = |name: &str| reply.get(name).as_exact_i64().unwrap_or_default();
        writeln!(
            out,
            "Backup {} in {url}: {} files; {} of them were sent.",
            number("backup"),
            number("files"),
            size(number("newBytes").unsigned_abs())
        )?;
        return Ok(());
    };
    let backups = backups_at(url, &given.store)?;
    check_is_there(path)?;
    make_new_files_private();
    let database = Database::open(path).map_err(|error| explain_open(path, &error))?;
    let made = backups.back_up(&database)?;
    database.close()?;
    writeln!(out, "Backup {}.", told(&made))?;
    let removed = backups.remove_old(&given.keep)?;
    tell_removed(&removed, &mut out)?;
    writeln!(
        out,
        "Check all with:  nilometer verify {url}\nRestore it with:  nilometer restore {url} NEW_DIRECTORY"
    )?;
    Ok(())
}

/// Returns the command for a server.
fn backup_command(url: &str, given: &args::Backup) -> nilometer_bson::Document {
    let mut command = DocumentBuilder::new();
    command.append("nilometerBackup", url);
    let text = |text: &Option<String>| text.as_deref().map(Value::from);
    let number = |number: Option<u64>| {
        number.map(|number| Value::Int64(i64::try_from(number).unwrap_or(i64::MAX)))
    };
    command.append("endpoint", text(&given.store.endpoint));
    command.append("region", text(&given.store.region));
    command.append("keep", number(given.keep.keep));
    command.append("keepDays", number(given.keep.keep_days.map(u64::from)));
    command.finish()
}

fn tell_removed(removed: &RemovedBackups, out: &mut impl Write) -> Done {
    if !removed.numbers.is_empty() {
        let numbers = removed.numbers.iter().map(u64::to_string);
        let numbers = numbers.collect::<Vec<_>>().join(", ");
        writeln!(out, "Removed: {numbers}.")?;
    }
    if removed.is_deferred {
        writeln!(
            out,
            "Another backup is running, or was killed less than a day ago: the objects of removed backups go with a later one."
        )?;
    }
    Ok(())
}

/// Describes a backup in a line.
fn told(made: &MadeBackup) -> String {
    let until = match made.until_ms {
        Some(until) => format!(", its log until {}", date(until)),
        None => String::new(),
    };
    format!(
        "{} of {}{until}: {} files, {}, of which {} were new",
        made.number,
        date(made.time_ms),
        made.files,
        size(made.bytes),
        size(made.new_bytes)
    )
}

fn date(time_ms: i64) -> String {
    format_date(time_ms).unwrap_or_else(|| format!("{time_ms} ms"))
}

/// Lists the backups of a store.
pub(super) fn list(given: &args::Backups) -> Done {
    let Some(url) = url(&given.url) else {
        return Err(Failure::Options(format!(
            "{} is not a URL of backups, such as s3://bucket/prefix",
            given.url.display()
        )));
    };
    let listed = backups_at(url, &given.store)?.list()?;
    let mut out = std::io::stdout().lock();
    if listed.is_empty() {
        writeln!(out, "There is no backup in {url}.")?;
    }
    for made in &listed {
        writeln!(out, "{}", told(made))?;
    }
    Ok(())
}

/// Makes a database of a copy or a backup.
pub(super) fn restore(given: &args::Restore) -> Done {
    let Some(url) = url(&given.source) else {
        check_directory(&store_options(&given.store))?;
        check_directory(&[
            ("--at", given.at.is_some()),
            ("--number", given.number.is_some()),
        ])?;
        return upkeep::restore(&given.source, &given.target);
    };
    let point = match (&given.at, given.number) {
        (Some(at), _) => Point::Time(parse_date(at).ok_or_else(|| {
            Failure::Options(format!(
                "--at takes a time such as 2026-05-01T12:00:00Z, not {at}"
            ))
        })?),
        (None, Some(number)) => Point::Number(number),
        (None, None) => Point::Latest,
    };
    let backups = backups_at(url, &given.store)?;
    make_new_files_private();
    let restored = backups.restore(&given.target, point)?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "The state of {}: {} files of backup {} and {} batches of the log, {}, in {target}.\n\
         Serve it with:  nilometer serve --dbpath {target}",
        date(restored.time_ms),
        restored.files,
        restored.number,
        restored.batches,
        size(restored.bytes),
        target = given.target.display()
    )?;
    Ok(())
}

/// Returns the databases at a URL.
fn databases_at(
    url: &str,
    partition: Option<&str>,
    store: &StoreArgs,
) -> Result<Vec<StoredDatabase>, Failure> {
    let (endpoint, region) = (store.endpoint.as_deref(), store.region.as_deref());
    let sizes = ObjectStorageOptions::default();
    ObjectStorage::new(url, endpoint, region, sizes)?.databases(partition)
}

/// Describes a directory, a file, or the databases at a URL.
pub(super) fn inspect(given: &args::InspectArgs) -> Done {
    let Some(url) = url(&given.path) else {
        check_directory(&database_options(&given.store, given.partition.as_deref()))?;
        return upkeep::inspect(&given.path);
    };
    let databases = databases_at(url, given.partition.as_deref(), &given.store)?;
    if databases.is_empty() {
        return Err(Failure::Other(format!("there is no database at {url}")));
    }
    upkeep::inspect_stored(&databases)
}

/// Checks a directory, the databases at a URL, or all backups there.
pub(super) fn verify(given: &args::Verify) -> Done {
    let Some(url) = url(&given.place) else {
        check_directory(&database_options(&given.store, given.partition.as_deref()))?;
        return upkeep::verify(&given.place);
    };
    let databases = databases_at(url, given.partition.as_deref(), &given.store)?;
    if !databases.is_empty() {
        return upkeep::verify_stored(url, &databases);
    }
    let checked = backups_at(url, &given.store)?.verify()?;
    let mut out = std::io::stdout().lock();
    for problem in &checked.problems {
        writeln!(out, "DAMAGED  {problem}")?;
    }
    writeln!(
        out,
        "{} backups: {} objects with files and {} parts of the log, {}, were read.",
        checked.backups,
        checked.objects,
        checked.parts,
        size(checked.bytes)
    )?;
    match checked.problems.len() {
        0 => Ok(()),
        problems => Err(Failure::Damaged(format!(
            "{problems} problems in the backups at {url}"
        ))),
    }
}

/// The options of `serve` for the continuous backup; `None` if not given.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ContinuousArgs {
    /// Back the directory up continuously: s3://BUCKET/PREFIX, gs://…, az://… or file:///DIR
    #[arg(
        id = "backup",
        long = "backup",
        value_name = "URL",
        help_heading = "Backup"
    )]
    url: Option<String>,

    /// Longest time until a write is in the backup; what a lost disk costs at most [default: 10]
    #[arg(
        id = "backupIntervalSecs",
        long = "backupIntervalSecs",
        value_name = "SECS",
        help_heading = "Backup"
    )]
    interval_secs: Option<u32>,

    /// Time between two backups of the files; between them only the log is stored [default: 24]
    #[arg(
        id = "backupFullIntervalHours",
        long = "backupFullIntervalHours",
        value_name = "HOURS",
        help_heading = "Backup"
    )]
    full_interval_hours: Option<u32>,

    /// Keep this many backups of the files and remove older ones
    #[arg(
        id = "backupKeep",
        long = "backupKeep",
        value_name = "N",
        help_heading = "Backup"
    )]
    keep: Option<u64>,

    /// Keep every moment of this many days, too, and remove older backups
    #[arg(
        id = "backupKeepDays",
        long = "backupKeepDays",
        value_name = "DAYS",
        help_heading = "Backup"
    )]
    keep_days: Option<u32>,

    /// Endpoint of s3://, gs:// or az:// backups; default: AWS_ENDPOINT_URL and the like
    #[arg(
        id = "backupEndpoint",
        long = "backupEndpoint",
        value_name = "URL",
        help_heading = "Backup"
    )]
    endpoint: Option<String>,

    /// Region of s3:// backups; default: AWS_REGION
    #[arg(
        id = "backupRegion",
        long = "backupRegion",
        value_name = "NAME",
        help_heading = "Backup"
    )]
    region: Option<String>,
}

/// The continuous backup of a server.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "only object storage reads them")
)]
pub struct ContinuousSettings {
    pub(super) backups: ObjectBackups,
    pub(super) interval: Duration,
    pub(super) full_interval: Duration,
    pub(super) keep: KeepArgs,
}

impl fmt::Display for ContinuousSettings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backups.fmt(formatter)
    }
}

impl ContinuousArgs {
    /// Returns these options, completed with those of `file`.
    pub(super) fn or(self, file: Self) -> Self {
        Self {
            url: self.url.or(file.url),
            interval_secs: self.interval_secs.or(file.interval_secs),
            full_interval_hours: self.full_interval_hours.or(file.full_interval_hours),
            keep: self.keep.or(file.keep),
            keep_days: self.keep_days.or(file.keep_days),
            endpoint: self.endpoint.or(file.endpoint),
            region: self.region.or(file.region),
        }
    }

    /// Sets the option at `path` of the configuration file. False if it is not one of these options.
    pub(super) fn set(&mut self, path: &str, text: &str) -> Result<bool, Failure> {
        let wrong = |_| Failure::Options(format!("{path} must be a whole number, not {text}"));
        match path {
            "backup.url" => self.url = Some(text.to_owned()),
            "backup.intervalSecs" => self.interval_secs = Some(text.parse().map_err(wrong)?),
            "backup.fullIntervalHours" => {
                self.full_interval_hours = Some(text.parse().map_err(wrong)?);
            }
            "backup.keep" => self.keep = Some(text.parse().map_err(wrong)?),
            "backup.keepDays" => self.keep_days = Some(text.parse().map_err(wrong)?),
            "backup.endpoint" => self.endpoint = Some(text.to_owned()),
            "backup.region" => self.region = Some(text.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks the options and fills in defaults. `is_on_objects` says that the database is on object storage.
    pub(super) fn resolve(
        &self,
        is_on_objects: bool,
    ) -> Result<Option<ContinuousSettings>, Failure> {
        let refused = |text: String| Err(Failure::Options(text));
        let Some(url) = &self.url else {
            let needing = self.parsed();
            return match needing.iter().find(|(_, value)| value.is_some()) {
                None => Ok(None),
                Some((name, _)) => refused(format!(
                    "the option {name} of a backup needs --backup with a URL"
                )),
            };
        };
        if is_on_objects {
            return refused(
                "--backup is for a directory: with --storage every write is in the store already"
                    .to_owned(),
            );
        }
        let within = |name: &str, given: Option<u32>, default: u32, max: u32| match given {
            Some(value) if !(1..=max).contains(&value) => Err(Failure::Options(format!(
                "--{name} must be between 1 and {max}, not {value}"
            ))),
            given => Ok(given.unwrap_or(default)),
        };
        let interval_secs = within(
            "backupIntervalSecs",
            self.interval_secs,
            INTERVAL_SECS,
            INTERVAL_SECS_MAX,
        )?;
        let hours = within(
            "backupFullIntervalHours",
            self.full_interval_hours,
            FULL_INTERVAL_HOURS,
            FULL_INTERVAL_HOURS_MAX,
        )?;
        if self.keep == Some(0) {
            return refused("--backupKeep must be at least 1".to_owned());
        }
        let backups = ObjectBackups::new(url, self.endpoint.as_deref(), self.region.as_deref())?;
        Ok(Some(ContinuousSettings {
            backups,
            interval: Duration::from_secs(interval_secs.into()),
            full_interval: Duration::from_secs(u64::from(hours) * 60 * 60),
            keep: KeepArgs {
                keep: self.keep,
                keep_days: self.keep_days,
            },
        }))
    }

    /// Returns the given options of the section `backup`.
    pub(super) fn parsed(&self) -> [(&'static str, Option<Value>); 7] {
        let text = |text: &Option<String>| text.as_deref().map(Value::from);
        let number = |number: Option<u32>| number.map(|number| Value::Int64(number.into()));
        let keep = self
            .keep
            .map(|keep| i64::try_from(keep).unwrap_or(i64::MAX));
        [
            ("url", text(&self.url)),
            ("intervalSecs", number(self.interval_secs)),
            ("fullIntervalHours", number(self.full_interval_hours)),
            ("keep", keep.map(Value::Int64)),
            ("keepDays", number(self.keep_days)),
            ("endpoint", text(&self.endpoint)),
            ("region", text(&self.region)),
        ]
    }
}

/// Starts the continuous backup of a server, and makes backups by command possible.
pub(super) fn start(
    settings: Option<&ContinuousSettings>,
    database: &Arc<Database>,
) -> Result<Option<RunningBackup>, Failure> {
    ObjectBackups::answer_commands(database);
    settings
        .map(|settings| settings.backups.start(settings, database))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(given: &ContinuousArgs, is_on_objects: bool) -> String {
        let resolved = given.resolve(is_on_objects);
        resolved.expect_err("refused").to_string()
    }

    #[test]
    fn options_that_do_not_fit_are_refused() {
        assert!(
            ContinuousArgs::default()
                .resolve(true)
                .expect("none")
                .is_none()
        );
        let alone = ContinuousArgs {
            keep: Some(3),
            ..ContinuousArgs::default()
        };
        assert!(refusal(&alone, false).contains("needs --backup"));
        let given = ContinuousArgs {
            url: Some("s3://garden/backup".to_owned()),
            ..ContinuousArgs::default()
        };
        assert!(refusal(&given, true).contains("--backup is for a directory"));
        for secs in [0, INTERVAL_SECS_MAX + 1] {
            let wrong = ContinuousArgs {
                interval_secs: Some(secs),
                ..given.clone()
            };
            assert!(refusal(&wrong, false).contains("--backupIntervalSecs must be between"));
        }
        let wrong = ContinuousArgs {
            keep: Some(0),
            ..given
        };
        assert!(refusal(&wrong, false).contains("--backupKeep"));
    }

    #[test]
    fn the_file_has_its_keys() {
        let text = "backup:\n  url: s3://a/b\n  intervalSecs: 5\n  keep: 7\n  keepDays: 30\n";
        let given = crate::cli::config::parse(text).expect("valid").backup;
        let names = given.parsed().map(|(name, value)| value.map(|_| name));
        let names = names.into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(names, ["url", "intervalSecs", "keep", "keepDays"]);
        assert!(crate::cli::config::parse("backup:\n  keep: -1\n").is_err());
    }
}
