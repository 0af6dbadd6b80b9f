//! Copying a database from one kind of storage into another.
//!
//! The copy has the same keyspaces with the same entries; only their form in the storage differs. A source that others
//! write is copied as it is when it is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nilometer_storage::{
    Engine, LsmEngine, LsmOptions, Snapshot, copy_contents, copy_into_directory,
};

pub use nilometer_storage::CopyProgress;

use super::check_exists;
use crate::error::Result;

/// Where a copy comes from.
pub struct CopySource {
    // Before the engine, so that it is dropped first.
    view: Box<dyn Snapshot>,
    directory: Option<(PathBuf, LsmEngine)>,
}

impl CopySource {
    /// Opens the database in a directory, which must not be open.
    pub fn directory(path: &Path) -> Result<Self> {
        check_exists(path)?;
        let engine = LsmEngine::open(path, LsmOptions::default())?;
        Ok(Self {
            view: engine.snapshot()?,
            directory: Some((path.to_path_buf(), engine)),
        })
    }

    /// Returns a source that is a view of an engine.
    pub fn view(view: Box<dyn Snapshot>) -> Self {
        Self {
            view,
            directory: None,
        }
    }
}

/// Where a copy goes.
pub enum CopyTarget<'a> {
    /// A directory that is empty or absent.
    Directory(&'a Path),
    /// A new engine.
    Engine(Arc<dyn Engine>),
}

/// Copies a database and calls `report` again and again with how far it is. When it returns, the copy is durable and has
/// been counted.
pub fn copy(
    from: &CopySource,
    to: CopyTarget<'_>,
    report: &mut dyn FnMut(&CopyProgress),
) -> Result<CopyProgress> {
    let (view, directory) = (&*from.view, from.directory.as_ref());
    Ok(match to {
        CopyTarget::Directory(path) => {
            let source = directory.map(|(source, _)| source.as_path());
            copy_into_directory(view, source, path, report)?
        }
        CopyTarget::Engine(engine) => copy_contents(view, &*engine, report)?,
    })
}

#[cfg(test)]
mod tests {
    use nilometer_storage::MemoryEngine;

    use super::*;
    use crate::Database;
    use crate::ErrorCode;
    use crate::database::offline;

    fn scratch(name: &str) -> tempfile::TempDir {
        tempfile::Builder::new()
            .prefix(name)
            .tempdir()
            .expect("a directory")
    }

    fn filled(path: &Path) {
        let database = Database::open(path).expect("a database");
        let garden = database.collection::<bson::Document>("garden", "beds");
        let long = "rose ".repeat(30_000);
        let beds = (0..300).map(|n| bson::doc! { "_id": n, "bed": n % 7 });
        garden.insert_many(beds).expect("inserted");
        let key = bson::doc! { "_id": long.as_str() };
        garden.insert_one(key).expect("a long key");
        database.close().expect("closed");
    }

    #[test]
    fn a_copy_in_another_engine_and_back_is_the_same_database() {
        let folder = scratch("copy");
        let (first, last) = (folder.path().join("first"), folder.path().join("last"));
        filled(&first);
        let between: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let source = CopySource::directory(&first).expect("a source");
        let mut reports = 0;
        let copied = copy(&source, CopyTarget::Engine(between.clone()), &mut |_| {
            reports += 1
        });
        let copied = copied.expect("a copy");
        assert!(reports > 0 && copied.entries > 300);
        assert_eq!(copied.entries, copied.entries_counted);
        drop(source);
        let back = CopySource::view(between.snapshot().expect("a view"));
        let target = CopyTarget::Directory(&last);
        assert_eq!(
            copy(&back, target, &mut |_| {}).expect("a copy").entries,
            copied.entries
        );
        let found = offline::verify(&last).expect("verified");
        assert!(found.is_sound(), "{found:?}");
        let database = Database::open(&last).expect("a database");
        let garden = database.collection::<bson::Document>("garden", "beds");
        assert_eq!(garden.count(bson::doc! {}).expect("a count"), 301);
        assert_eq!(garden.count(bson::doc! { "bed": 3 }).expect("a count"), 43);
    }

    #[test]
    fn a_copy_refuses_what_is_not_empty_and_what_is_not_there() {
        let folder = scratch("copy");
        let path = |name: &str| folder.path().join(name);
        filled(&path("data"));
        assert!(CopySource::directory(&path("nothing")).is_err());
        assert!(!path("nothing").exists());
        let source = CopySource::directory(&path("data")).expect("a source");
        let copy_to = |target: &Path| {
            let outcome = copy(&source, CopyTarget::Directory(target), &mut |_| {});
            outcome.map_err(|error| (error.code, error.message))
        };
        std::fs::create_dir(path("full")).expect("a folder");
        std::fs::write(path("full").join("note"), "x").expect("a file");
        for target in [path("full"), path("data"), path("data").join("inner")] {
            let (code, message) = copy_to(&target).expect_err("refused");
            assert_eq!(code, ErrorCode::BadValue, "{message}");
        }
        assert!(copy_to(&path("copy/")).is_ok());
        let used = Arc::new(MemoryEngine::new());
        copy(&source, CopyTarget::Engine(used.clone()), &mut |_| {}).expect("a copy");
        let again = copy(&source, CopyTarget::Engine(used), &mut |_| {});
        assert!(again.is_err(), "it has contents");
    }
}
