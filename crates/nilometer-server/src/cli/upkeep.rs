//! `nilometer backup`, `restore`, `verify`, `salvage` and `inspect`: operations on a whole database.
//! `nilometer::database::offline` does the work; this module prints the results.

use std::io::Write;
use std::path::Path;

use nilometer::database::offline::{
    self, CollectionKind, CollectionReport, DirectoryReport, SalvageReport, Verification,
};
use nilometer::{Database, ErrorCode};
use nilometer_bson::doc;

use super::Failure;
use super::args;
use super::object_storage::StoredDatabase;
use crate::machine::make_new_files_private;

type Done = Result<(), Failure>;

/// The last line about a database without damage.
const ALL_SOUND: &str = "Every checksum matches; no problem was found.";

/// Copies a database, served or not, into an empty directory.
pub(super) fn backup(given: &args::Backup) -> Done {
    let target = &given.target;
    let mut out = std::io::stdout().lock();
    match &given.dbpath {
        Some(path) => {
            check_is_there(path)?;
            make_new_files_private();
            let database = Database::open(path).map_err(|error| explain_open(path, &error))?;
            database.checkpoint(target)?;
            database.close()?;
        }
        None => {
            let directory = std::path::absolute(target)?;
            let mut server = given.server.open()?;
            let command = doc! { "nilometerBackup": directory.display().to_string() };
            server.run("admin", &command)?;
        }
    }
    writeln!(
        out,
        "The copy is in {0}.\nOn the same file system it shares its files with the database until those \
         change: move it to another disk.\nCheck it with:  nilometer verify {0}",
        target.display()
    )?;
    Ok(())
}

/// Makes a database from a copy.
pub(super) fn restore(source: &Path, target: &Path) -> Done {
    make_new_files_private();
    let (mut files, mut bytes) = (0u64, 0u64);
    offline::restore(source, target, &mut |_, length| {
        files += 1;
        bytes += length;
    })?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{files} files, {} copied to {1}.\nServe it with:  nilometer serve --dbpath {1}",
        size(bytes),
        target.display()
    )?;
    Ok(())
}

/// Checks everything in a directory.
pub(super) fn verify(directory: &Path) -> Done {
    make_new_files_private();
    let found = offline::verify(directory).map_err(|error| explain_open(directory, &error))?;
    let mut out = std::io::stdout().lock();
    tell_verified(&found, &mut out)?;
    if found.is_sound() {
        writeln!(out, "{ALL_SOUND}")?;
        return Ok(());
    }
    if found.is_readable() {
        return Err(Failure::Damaged(format!(
            "everything else in {} is whole and can be served. The writes that were cut from the log are \
             reported until its file is removed. After a power loss a cut is usual; otherwise a disk or a copy \
             changed bytes",
            directory.display()
        )));
    }
    Err(Failure::Damaged(format!(
        "{0} is damaged. To save its readable part:  nilometer salvage {0} NEW_DIRECTORY",
        directory.display()
    )))
}

/// Checks everything in the databases at a URL, each as it is when its turn comes. One that cannot be read does not keep back the
/// others.
pub(super) fn verify_stored(url: &str, databases: &[StoredDatabase]) -> Done {
    let mut out = std::io::stdout().lock();
    let (mut damaged, mut failed) = (Vec::new(), Vec::new());
    for database in databases {
        let name = database.name().unwrap_or(url);
        writeln!(out, "{name}")?;
        match database.verify() {
            Ok(found) => {
                tell_verified(&found, &mut out)?;
                if !found.is_sound() {
                    damaged.push(name);
                }
            }
            Err(error) if error.code == ErrorCode::DataCorruptionDetected => {
                writeln!(out, "DAMAGED  {}", error.message)?;
                damaged.push(name);
            }
            Err(error) => {
                writeln!(out, "FAILED  {}", error.message)?;
                failed.push(name);
            }
        }
        // The next one may take long.
        out.flush()?;
    }
    if damaged.is_empty() && failed.is_empty() {
        let count = databases.len();
        if count > 1 {
            write!(out, "{count} databases. ")?;
        }
        writeln!(out, "{ALL_SOUND}")?;
        return Ok(());
    }
    let mut problems = Vec::new();
    if !damaged.is_empty() {
        problems.push(format!("damaged: {}", damaged.join(", ")));
    }
    if !failed.is_empty() {
        problems.push(format!("cannot be read: {}", failed.join(", ")));
    }
    let text = format!("of {url}, {}", problems.join("; "));
    Err(match damaged.is_empty() {
        true => Failure::Other(text),
        false => Failure::Damaged(text),
    })
}

fn tell_verified(found: &Verification, out: &mut impl Write) -> Done {
    for problem in &found.damage {
        writeln!(out, "DAMAGED  {problem}")?;
    }
    for cut in &found.cuts {
        let verdict = if cut.write_is_complete {
            "DAMAGED"
        } else {
            "torn"
        };
        writeln!(out, "{verdict}  {cut}")?;
    }
    for (name, validation) in &found.collections {
        let entries: u64 = validation.keys_per_index.iter().map(|(_, n)| n).sum();
        let verdict = match validation.invalid {
            0 => "ok".to_owned(),
            wrong => format!("DAMAGED, {wrong} wrong"),
        };
        writeln!(
            out,
            "{verdict}  {name}: {} checked, {} indexes with {entries} entries",
            validation.checked,
            validation.keys_per_index.len()
        )?;
        for problem in &validation.problems {
            writeln!(out, "    {problem}")?;
        }
        if let Some(miscount) = validation.miscount {
            writeln!(out, "    {miscount}; the command validate corrects that")?;
        }
    }
    Ok(())
}

/// Saves the readable part of a damaged directory.
pub(super) fn salvage(given: &args::SourceAndTarget) -> Done {
    make_new_files_private();
    let salvaged = offline::salvage(&given.source, &given.target)?;
    let mut out = std::io::stdout().lock();
    tell_salvaged(&salvaged, &mut out)?;
    if salvaged.is_whole() {
        writeln!(out, "Nothing was lost.")?;
        return Ok(());
    }
    writeln!(out, "{} is untouched.", given.source.display())?;
    Err(Failure::Damaged(format!(
        "everything not listed as lost is in {}",
        given.target.display()
    )))
}

fn tell_salvaged(salvaged: &SalvageReport, out: &mut impl Write) -> Done {
    for collection in &salvaged.collections {
        let what = if collection.is_bucketed {
            "buckets"
        } else {
            "documents"
        };
        writeln!(
            out,
            "{}: {} {what} kept, {} lost",
            collection.namespace, collection.kept, collection.lost
        )?;
        for loss in &collection.losses {
            writeln!(out, "    lost: {loss}")?;
        }
    }
    if salvaged.users + salvaged.roles > 0 || !salvaged.lost_users_and_roles.is_empty() {
        writeln!(
            out,
            "{} users and {} roles kept, {} lost",
            salvaged.users,
            salvaged.roles,
            salvaged.lost_users_and_roles.len()
        )?;
    }
    for lost in &salvaged.lost_users_and_roles {
        writeln!(out, "    lost: {lost}")?;
    }
    for damage in &salvaged.damage {
        writeln!(out, "damage in {damage}")?;
    }
    Ok(())
}

/// Describes a database directory or one of its files.
pub(super) fn inspect(path: &Path) -> Done {
    let mut out = std::io::stdout().lock();
    if path.is_file() {
        for line in offline::describe_file(path)? {
            writeln!(out, "{line}")?;
        }
        return Ok(());
    }
    make_new_files_private();
    let found = offline::inspect(path).map_err(|error| explain_open(path, &error))?;
    tell_whole(&found, &mut out)?;
    tell_contents(&found, &mut out)
}

/// Describes the databases at a URL.
pub(super) fn inspect_stored(databases: &[StoredDatabase]) -> Done {
    let mut out = std::io::stdout().lock();
    for (at, database) in databases.iter().enumerate() {
        let found = database.inspect()?;
        let bytes = size(found.engine.disk_bytes);
        if at > 0 {
            writeln!(out)?;
        }
        match database.name() {
            Some(name) => writeln!(out, "{name}: {bytes} in tables")?,
            None => writeln!(out, "{bytes} in tables")?,
        }
        tell_contents(&found, &mut out)?;
        out.flush()?;
    }
    Ok(())
}

/// Describes views and collections.
fn tell_contents(found: &DirectoryReport, out: &mut impl Write) -> Done {
    for view in &found.views {
        writeln!(out, "\n{view}: a view")?;
    }
    for collection in &found.collections {
        tell_collection(collection, out)?;
    }
    Ok(())
}

fn tell_whole(found: &DirectoryReport, out: &mut impl Write) -> Done {
    let engine = &found.engine;
    writeln!(
        out,
        "{} on disk, {} of it used by the log",
        size(engine.disk_bytes),
        size(engine.log_bytes)
    )?;
    let recovery = &found.recovery;
    writeln!(
        out,
        "the log held {} batches, {} operations of them not yet in tables",
        recovery.batches, recovery.operations
    )?;
    for cut in recovery.earlier_cuts.iter().chain(&recovery.cut) {
        writeln!(out, "{cut}")?;
    }
    Ok(())
}

fn tell_collection(figures: &CollectionReport, out: &mut impl Write) -> Done {
    let kind = match figures.kind {
        CollectionKind::TimeSeries => "buckets of a time series",
        CollectionKind::Ordinary => "an ordinary collection",
        CollectionKind::Clustered => "a clustered collection",
    };
    writeln!(
        out,
        "\n{}: {kind}\n  {} on disk, {} only in the log",
        figures.namespace,
        size(figures.disk_bytes),
        size(figures.memory_bytes)
    )?;
    if figures.kind == CollectionKind::TimeSeries {
        tell_buckets(figures, out)?;
    } else {
        writeln!(out, "  {} documents", figures.count)?;
    }
    for (name, bytes) in &figures.indexes {
        writeln!(out, "  index {name}: {}", size(*bytes))?;
    }
    if figures.damaged > 0 {
        writeln!(out, "  DAMAGED: {} buckets cannot be read", figures.damaged)?;
    }
    for damage in &figures.damage {
        writeln!(out, "    {damage}")?;
    }
    Ok(())
}

fn tell_buckets(figures: &CollectionReport, out: &mut impl Write) -> Done {
    writeln!(
        out,
        "  {} measurements in {} buckets, {:.1} each",
        figures.measurements,
        figures.count,
        ratio(figures.measurements, figures.count)
    )?;
    let versions = figures.versions.iter();
    let versions: Vec<String> = versions
        .map(|(v, n)| format!("{n} of version {v}"))
        .collect();
    writeln!(
        out,
        "  {}; documents: {} sealed, {} open; {} entries of tails",
        versions.join(", "),
        figures.sealed_documents,
        figures.open_documents,
        figures.tail_entries
    )?;
    for (name, column) in &figures.columns {
        writeln!(
            out,
            "  column {name}: {} in {} buckets, stored in {}, {:.2} bytes per measurement",
            size(column.bytes),
            column.buckets,
            size(column.stored_bytes),
            ratio(column.stored_bytes, column.measurements)
        )?;
    }
    Ok(())
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}

/// Formats bytes with a unit.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let (mut amount, mut unit) = (bytes as f64 / 1024.0, "KiB");
    for next in UNITS.iter().skip(1) {
        if amount < 1024.0 {
            break;
        }
        (amount, unit) = (amount / 1024.0, next);
    }
    format!("{amount:.1} {unit}")
}

pub(super) fn check_is_there(path: &Path) -> Done {
    if path.is_dir() {
        return Ok(());
    }
    Err(Failure::Options(format!(
        "{} is not a directory",
        path.display()
    )))
}

/// Explains why a directory cannot be opened, and what to do.
pub(super) fn explain_open(path: &Path, error: &nilometer::Error) -> Failure {
    if error.code == ErrorCode::DataCorruptionDetected {
        return Failure::Damaged(format!(
            "{}\nTo save its readable part:  nilometer salvage {} NEW_DIRECTORY",
            error.message,
            path.display()
        ));
    }
    Failure::Other(error.message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(1023), "1023 bytes");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(3 << 20), "3.0 MiB");
        assert_eq!(size(5 << 40), "5.0 TiB");
    }
}
