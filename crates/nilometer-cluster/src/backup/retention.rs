//! Removing old backups. Why that is safe beside a backup that runs is explained in the head of [`super`].

use std::collections::BTreeSet;

use nilometer_storage::{Error, Result};

use super::BackupStore;
use super::catalog::PartName;
use super::manifest::{FileObject, Manifest};

const DAY_MS: i64 = 24 * 60 * 60 * 1000;

/// Marks of removed backups that are left, so that a request of a process that was paused for long brings none back.
const MARKS_LEFT: u64 = 1000;

/// Which backups stay. A backup stays if one of the rules says so; the newest always does. Without a rule all stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// That many, the newest.
    pub keep: Option<u64>,
    /// Those of the last days. In the continuous mode also the one before, from which the oldest of these moments is
    /// restored.
    pub keep_days: Option<u32>,
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The backups.
    pub backups: Vec<u64>,
    /// Their objects that no other backup needs.
    pub objects: u64,
    /// True if the objects stay for now, because another backup is running.
    pub is_deferred: bool,
}

impl Retention {
    /// Returns the numbers of the backups that go. `manifests` are ordered by number.
    fn outdated(&self, manifests: &[Manifest], now_ms: i64) -> Vec<u64> {
        if self.keep.is_none() && self.keep_days.is_none() {
            return Vec::new();
        }
        let begin_ms = self
            .keep_days
            .map(|days| now_ms.saturating_sub(i64::from(days).saturating_mul(DAY_MS)));
        let is_before =
            |manifest: &&Manifest| begin_ms.is_some_and(|begin| manifest.time_ms < begin);
        let before = manifests.iter().filter(is_before);
        let before = before.max_by_key(|manifest| (manifest.time_ms, manifest.number));
        let before = before.filter(|manifest| manifest.run.is_some());
        let newest_first = manifests.iter().rev().enumerate();
        let goes = newest_first.filter(|(rank, manifest)| {
            let by_count = self.keep.is_some_and(|keep| (*rank as u64) < keep);
            let by_age = begin_ms.is_some_and(|begin| manifest.time_ms >= begin);
            let is_begin = before.is_some_and(|before| before.number == manifest.number);
            *rank > 0 && !by_count && !by_age && !is_begin
        });
        let mut numbers = goes
            .map(|(_, manifest)| manifest.number)
            .collect::<Vec<_>>();
        numbers.reverse();
        numbers
    }
}

impl BackupStore {
    /// Removes the backups that do not stay, and the objects that no backup needs.
    pub fn remove_old(&self, retention: &Retention) -> Result<Removed> {
        self.runtime.block_on(self.try_remove_old(retention))
    }

    async fn try_remove_old(&self, retention: &Retention) -> Result<Removed> {
        let catalog = &self.catalog;
        let outdated = retention.outdated(&self.manifests().await?, (self.clock)());
        for number in &outdated {
            catalog.mark_removed(*number).await?;
        }
        let mut removed = Removed {
            backups: outdated,
            ..Removed::default()
        };
        let marked = catalog.removed().await?;
        let (begun, unfinished) = catalog.begun().await?;
        for (number, age) in unfinished {
            if age < self.abandoned_after {
                removed.is_deferred = true;
                return Ok(removed);
            }
            catalog.abandon(number).await?;
        }
        let Some(last) = begun.last().copied() else {
            return Ok(removed);
        };
        // One that was completed instead of given up is among these.
        let staying = self.manifests().await?;
        let needed = staying
            .iter()
            .flat_map(|manifest| manifest.objects().into_keys());
        let needed = needed.collect::<BTreeSet<_>>();
        let mut unneeded = Vec::new();
        for listed in catalog.objects.list("files").await? {
            let object = listed.name.parse::<FileObject>();
            if object.is_ok_and(|object| object.number <= last && !needed.contains(&object)) {
                unneeded.push(format!("files/{}", listed.name));
            }
        }
        let is_needed = |part: &PartName| {
            let mut of_run = staying
                .iter()
                .filter(|manifest| manifest.run == Some(part.run));
            of_run.any(|manifest| part.next > manifest.end.next_index)
        };
        let parts = catalog.parts(None).await?;
        let parts = parts
            .iter()
            .filter(|part| part.run <= last && !is_needed(part));
        unneeded.extend(parts.map(PartName::name));
        catalog.objects.delete(&unneeded).await?;
        removed.objects = unneeded.len() as u64;
        for number in marked {
            catalog.forget(number, number + MARKS_LEFT < last).await?;
        }
        Ok(removed)
    }

    /// Reads the manifests of all backups, in the order of their numbers. A damaged one is an error: what it needs is not
    /// known.
    async fn manifests(&self) -> Result<Vec<Manifest>> {
        let mut manifests = Vec::new();
        for number in self.catalog.usable().await? {
            manifests.extend(self.catalog.manifest(number).await?);
        }
        Ok(manifests)
    }

    /// Reads the manifests that are whole, in the order of their numbers, and describes the others.
    pub(super) async fn readable_manifests(&self) -> Result<(Vec<Manifest>, Vec<String>)> {
        let (mut manifests, mut problems) = (Vec::new(), Vec::new());
        for number in self.catalog.usable().await? {
            match self.catalog.manifest(number).await {
                Ok(manifest) => manifests.extend(manifest),
                Err(error @ Error::Corruption { .. }) => problems.push(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok((manifests, problems))
    }
}

#[cfg(test)]
mod tests {
    use nilometer_storage::LogPosition;

    use super::*;

    fn backups(list: &[(u64, i64, Option<u64>)]) -> Vec<Manifest> {
        let made = list.iter().map(|(number, days, run)| Manifest {
            number: *number,
            time_ms: days * DAY_MS,
            format_version: 1,
            end: LogPosition::default(),
            run: *run,
            files: Vec::new(),
        });
        made.collect()
    }

    #[test]
    fn what_stays() {
        let list = backups(&[(1, 1, None), (2, 2, None), (5, 5, None), (6, 6, None)]);
        let goes = |keep, keep_days| {
            let retention = Retention { keep, keep_days };
            retention.outdated(&list, 10 * DAY_MS)
        };
        assert_eq!(goes(None, None), [0; 0]);
        assert_eq!(goes(Some(0), None), [1, 2, 5], "the newest stays");
        assert_eq!(goes(Some(2), None), [1, 2]);
        assert_eq!(goes(None, Some(5)), [1, 2]);
        assert_eq!(goes(None, Some(1)), [1, 2, 5]);
        assert_eq!(goes(Some(3), Some(5)), [1], "either rule keeps one");
    }

    #[test]
    fn the_oldest_moment_of_the_last_days_can_be_restored() {
        let list = backups(&[(1, 1, Some(1)), (2, 4, Some(1)), (5, 8, Some(1))]);
        let retention = Retention {
            keep: None,
            keep_days: Some(5),
        };
        assert_eq!(retention.outdated(&list, 10 * DAY_MS), [1]);
    }
}
