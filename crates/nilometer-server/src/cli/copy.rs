//! `nilometer copy`: a database from one kind of storage into another, with the progress on the standard error stream.

use std::io::Write;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use nilometer::database::offline::{self, CopyProgress, CopySource, CopyTarget};

use super::Failure;
use super::args::CopyArgs;
use super::object_storage::ObjectStorage;
use super::storage::ObjectStorageOptions;
use crate::machine::make_new_files_private;

/// Beginnings of URLs whose store may have another endpoint.
const WITH_ENDPOINT: [&str; 3] = ["s3://", "gs://", "az://"];

/// A copy of a cluster.
pub(super) struct CopiedCluster {
    pub(super) partitions: u32,
    /// Of all its databases.
    pub(super) copied: CopyProgress,
}

/// One end of a copy.
enum Place<'a> {
    Directory(&'a Path),
    Objects(ObjectStorage),
}

/// Copies a database.
pub(super) fn run(given: &CopyArgs) -> Result<(), Failure> {
    let ends = [&given.from, &given.to];
    let none_of = |schemes: &[&str]| {
        let takes = |end: &&String| schemes.iter().any(|scheme| end.starts_with(scheme));
        !ends.iter().any(takes)
    };
    if given.region.is_some() && none_of(&["s3://"]) {
        return Err(Failure::Options(
            "--storageRegion needs a URL with s3://".into(),
        ));
    }
    if given.endpoint.is_some() && none_of(&WITH_ENDPOINT) {
        return Err(Failure::Options(
            "--storageEndpoint needs a URL with s3://, gs:// or az://".into(),
        ));
    }
    let (from, to) = (place(&given.from, given)?, place(&given.to, given)?);
    make_new_files_private();
    if given.partition.is_some() && matches!(from, Place::Directory(_)) {
        return Err(Failure::Options(
            "--partition needs the URL of a cluster as FROM".into(),
        ));
    }
    let style = ProgressStyle::with_template("{spinner} {elapsed} {bytes} {bytes_per_sec} {msg}");
    let style = style.map_err(|error| Failure::Other(error.to_string()))?;
    let bar = ProgressBar::new_spinner().with_style(style);
    if let (Place::Objects(from), Place::Objects(target), None) = (&from, &to, &given.partition) {
        let copied = from.copy_cluster(target, &mut |name, progress| {
            bar.set_position(progress.bytes);
            bar.set_message(format!("{name}: {}", told(progress)));
        })?;
        if let Some(cluster) = copied {
            bar.finish_and_clear();
            return tell_cluster(&cluster, &given.to);
        }
    }
    let source = match from {
        Place::Directory(path) => CopySource::directory(path)?,
        Place::Objects(storage) => storage.source(given.partition.as_deref())?,
    };
    let mut report = |progress: &CopyProgress| {
        bar.set_position(progress.bytes);
        bar.set_message(told(progress));
    };
    let copied = match &to {
        Place::Directory(path) => offline::copy(&source, CopyTarget::Directory(path), &mut report)?,
        Place::Objects(storage) => storage.copy_here(&source, &mut report)?,
    };
    bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    let option = match to {
        Place::Directory(_) => "--dbpath",
        Place::Objects(_) => "--storage",
    };
    writeln!(
        out,
        "{} entries of {} keyspaces, {} bytes, copied to {to} and counted there.\nServe it with:  nilometer serve {option} {to}",
        copied.entries,
        copied.keyspaces,
        copied.bytes,
        to = given.to
    )?;
    Ok(())
}

fn tell_cluster(cluster: &CopiedCluster, to: &str) -> Result<(), Failure> {
    let CopiedCluster { partitions, copied } = cluster;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "The catalog and {partitions} partitions, {} entries of {} keyspaces, {} bytes, copied to {to} and counted there.\n\
         Serve it with:  nilometer serve --storage {to} --cluster",
        copied.entries, copied.keyspaces, copied.bytes,
    )?;
    Ok(())
}

fn place<'a>(text: &'a str, given: &CopyArgs) -> Result<Place<'a>, Failure> {
    if !text.contains("://") {
        return Ok(Place::Directory(Path::new(text)));
    }
    // Either end may be without them.
    let is_s3 = text.starts_with("s3://");
    let has_endpoint = WITH_ENDPOINT.iter().any(|scheme| text.starts_with(scheme));
    let endpoint = given.endpoint.as_deref().filter(|_| has_endpoint);
    let region = given.region.as_deref().filter(|_| is_s3);
    let sizes = ObjectStorageOptions::default();
    let storage = ObjectStorage::new(text, endpoint, region, sizes)?;
    Ok(Place::Objects(storage))
}

/// Describes how far a copy is.
fn told(progress: &CopyProgress) -> String {
    if progress.entries_counted > 0 {
        let (counted, all) = (progress.entries_counted, progress.entries);
        return format!("counting: {counted} of {all} entries");
    }
    let (copied, all) = (progress.keyspaces_copied, progress.keyspaces);
    format!(
        "copying: {} entries, {copied} of {all} keyspaces complete",
        progress.entries
    )
}
