//! Creating and dropping keyspaces, and ending the log at a clean close.
//!
//! Creating makes the files of the tree, then names it in the list, then accepts writes. Dropping removes it from the
//! list and marks it; its directory is removed with the last reference, so open scans continue. A crash in between
//! leaves an unnamed directory, which the next opening removes.

use std::sync::Arc;

use super::TreeMap;
use super::core::Core;
use super::directory::write_format;
use super::log_part::KeyspaceChange;
use super::tree::Tree;
use super::tree_list::TreeList;
use crate::engine::{Keyspace, KeyspaceId, KeyspaceOptions};
use crate::error::{Error, Result};
use crate::lock::lock;

impl Core {
    /// Creates a keyspace. It is durable when this returns.
    pub(crate) fn create_keyspace(
        &self,
        name: &str,
        options: KeyspaceOptions,
    ) -> Result<KeyspaceId> {
        self.health.check_writable()?;
        let mut list = lock(&self.list);
        let keyspace = Keyspace {
            id: KeyspaceId(list.next_id),
            name: name.to_owned(),
            options,
        };
        self.add_keyspace(&mut list, keyspace)
    }

    /// Creates a keyspace with an id of another engine. It is durable when this returns.
    pub(crate) fn import_keyspace(&self, keyspace: Keyspace) -> Result<()> {
        self.health.check_writable()?;
        let mut list = lock(&self.list);
        self.add_keyspace(&mut list, keyspace).map(drop)
    }

    fn add_keyspace(&self, list: &mut TreeList, keyspace: Keyspace) -> Result<KeyspaceId> {
        keyspace.check_new(list.next_id, list.keyspaces.iter())?;
        let directory = self.context.directory.path();
        let _wait = self.context.pending_io.begin("create a tree in", directory);
        let tree = Tree::create(&self.context, keyspace.clone())?;
        let mut longer = list.clone();
        longer.next_id = keyspace.id.0 + 1;
        longer.keyspaces.push(keyspace.clone());
        if keyspace.options.long_keys_of.is_some() {
            write_format(directory, longer.format_version())?;
        }
        longer.write(directory)?;
        *list = longer;
        let change = || KeyspaceChange::Created(keyspace.clone());
        self.keyspace_changes.note(&self.log, change);
        let mut trees = TreeMap::clone(&self.trees());
        trees.insert(keyspace.id, Arc::new(tree));
        self.set_trees(trees);
        Ok(keyspace.id)
    }

    /// Drops a keyspace. The drop is durable when this returns.
    pub(crate) fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.health.check_writable()?;
        let mut list = lock(&self.list);
        let tree = self.tree(id)?;
        let mut shorter = list.clone();
        shorter.keyspaces.retain(|keyspace| keyspace.id != id);
        let directory = self.context.directory.path();
        let _wait = self
            .context
            .pending_io
            .begin("write the list of trees in", directory);
        shorter.write(directory)?;
        *list = shorter;
        let change = || KeyspaceChange::Dropped(id);
        self.keyspace_changes.note(&self.log, change);
        tree.mark_dropped();
        let mut trees = TreeMap::clone(&self.trees());
        trees.remove(&id);
        self.set_trees(trees);
        Ok(())
    }

    /// Syncs the log and ends it, at a clean close. A long log is flushed and removed.
    pub(crate) fn end_log(&self) -> Result<()> {
        if let Some(error) = self.health.failure() {
            return Err(error);
        }
        self.log.sync()?;
        match self.log.end(&mut self.log.lock()) {
            // Without space for a segment the end is not recorded, but no batch is missing.
            Err(Error::Full { .. }) => return Ok(()),
            other => other?,
        }
        // A flush that fails leaves the log as it is: the next opening reads it.
        let _ = self.shrink_ended_log();
        Ok(())
    }

    fn shrink_ended_log(&self) -> Result<()> {
        if self.log.file_bytes() <= self.context.options.log_rest_bytes {
            return Ok(());
        }
        self.log.shed_spares()?;
        self.remove_flushed_segments()?;
        let mut flushed = 0;
        loop {
            let blockers = self
                .log
                .blockers(|id, through| self.is_flushed(id, through));
            let Some(id) = blockers.first() else {
                return Ok(());
            };
            // One flush of each tree is enough: nothing is written any more.
            flushed += 1;
            if flushed > self.trees().len() {
                return Ok(());
            }
            self.flush_tree(&self.tree(*id)?)?;
        }
    }
}
