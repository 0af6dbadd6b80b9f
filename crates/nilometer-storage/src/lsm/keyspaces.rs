//! Creating and dropping keyspaces, and ending the log at a clean close.
//!
//! Creating names the keyspaces in the list, once for all, then accepts writes; they have no files until they are flushed, see
//! [`super::first_flush`]. Dropping removes a tree from the list and marks it; its directory is removed with
//! the last reference, so open scans continue. A crash in between leaves an unnamed directory, which the next opening
//! removes.

use std::sync::Arc;

use super::TreeMap;
use super::core::Core;
use super::log_part::KeyspaceChange;
use super::tree::Tree;
use super::tree_list::TreeList;
use crate::engine::{Keyspace, KeyspaceId, NewKeyspace};
use crate::error::{Error, Result};
use crate::lock::lock;

impl Core {
    /// Creates keyspaces, all or none. They are durable when this returns.
    pub(crate) fn create_keyspaces(&self, new: &[NewKeyspace<'_>]) -> Result<Vec<KeyspaceId>> {
        self.health.check_writable()?;
        let mut list = lock(&self.list);
        let keyspaces = Keyspace::with_ids_from(list.next_id, new);
        self.add_keyspaces(&mut list, keyspaces)
    }

    /// Creates a keyspace with an id of another engine. It is durable when this returns.
    pub(crate) fn import_keyspace(&self, keyspace: Keyspace) -> Result<()> {
        self.health.check_writable()?;
        let mut list = lock(&self.list);
        self.add_keyspaces(&mut list, vec![keyspace]).map(drop)
    }

    fn add_keyspaces(
        &self,
        list: &mut TreeList,
        keyspaces: Vec<Keyspace>,
    ) -> Result<Vec<KeyspaceId>> {
        Keyspace::check_all_new(&keyspaces, list.next_id, list.keyspaces.iter())?;
        let ids = keyspaces
            .iter()
            .map(|keyspace| keyspace.id)
            .collect::<Vec<_>>();
        let Some(last) = ids.last() else {
            return Ok(ids);
        };
        let directory = &self.context.directory;
        let path = directory.path();
        let _wait = self.context.pending_io.begin("create trees in", path);
        let mut longer = list.clone();
        longer.next_id = last.0 + 1;
        longer.keyspaces.extend(keyspaces.iter().cloned());
        longer.unflushed.extend(&ids);
        let mut trees = TreeMap::clone(&self.trees());
        for keyspace in &keyspaces {
            let tree = Tree::open_unflushed(&self.context, keyspace.clone())?;
            trees.insert(keyspace.id, Arc::new(tree));
        }
        directory.raise_format(longer.format_version())?;
        longer.write(path)?;
        *list = longer;
        for keyspace in keyspaces {
            let change = || KeyspaceChange::Created(keyspace);
            self.keyspace_changes.note(&self.log, change);
        }
        self.set_trees(trees);
        Ok(ids)
    }

    /// Drops a keyspace. The drop is durable when this returns.
    pub(crate) fn drop_keyspace(&self, id: KeyspaceId) -> Result<()> {
        self.health.check_writable()?;
        let mut list = lock(&self.list);
        let tree = self.tree(id)?;
        let mut shorter = list.clone();
        shorter.keyspaces.retain(|keyspace| keyspace.id != id);
        shorter.unflushed.remove(&id);
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
            let Some((id, through)) = blockers.first() else {
                return Ok(());
            };
            // One flush of each tree is enough: nothing is written any more.
            flushed += 1;
            if flushed > self.trees().len() {
                return Ok(());
            }
            self.free_log(&self.tree(*id)?, *through)?;
        }
    }
}
