//! Updates and deletes of many documents on a router.
//!
//! Partitions run a statement at the same time. If some have answered, and others refused a placement that was replaced meanwhile, it
//! goes on by the new one with what those had of it.

use nilometer_bson::Document;

use super::buffered::BufferedWrites;
use super::change::{Answer, Done, StatementRequest, StatementState, Statements, ask_parts};
use crate::error::Result;
use crate::router::{OpenPart, OpenRanges, Placement, Sharding, narrowed, version_asked};

impl Statements<'_> {
    /// Runs a statement in all targets that have something to change still.
    pub(super) fn everywhere(
        &self,
        placement: &Placement,
        targets: &[usize],
        run: &StatementRequest<'_>,
        state: &mut StatementState<'_>,
        buffered: &mut BufferedWrites,
    ) -> Result<Answer> {
        state.open = state.open.take().filter(|open| open.is_of(placement));
        let asked: Vec<(usize, Document)> = targets
            .iter()
            .filter_map(|target| {
                Some((
                    *target,
                    self.open_part(placement, *target, run, state, buffered)?,
                ))
            })
            .collect();
        let routed = self.routed(placement, run, false);
        let place = (self.router, self.operation, self.namespace);
        let answers = ask_parts(place, &asked, &routed);
        let (mut refused, mut wanted, mut failed) = (Vec::new(), None, None);
        for ((target, _), answer) in asked.into_iter().zip(answers) {
            match answer {
                Ok(reply) => {
                    buffered.note(target, &reply)?;
                    state.replies.push((target, reply));
                }
                Err(error) => match version_asked(&error) {
                    Some(version) => {
                        wanted = Some(version);
                        refused.push(target);
                    }
                    None => failed = failed.or(Some(error)),
                },
            }
        }
        match (failed, wanted) {
            (Some(error), _) => Err(error),
            (None, Some(wanted)) => {
                if let Some(sharding) = ordinary_sharding(placement) {
                    let open = OpenRanges::of(placement, sharding, &refused, state.open.as_ref());
                    state.open = Some(open);
                }
                Ok(Err(wanted))
            }
            (None, None) => Ok(Ok(Done::of_all(&state.replies))),
        }
    }

    /// Returns the command for a target; `None` if it has changed everything there. A measurement stays in its partition, while
    /// documents move between those that have answered and those that have not.
    fn open_part(
        &self,
        placement: &Placement,
        target: usize,
        run: &StatementRequest<'_>,
        state: &StatementState<'_>,
        buffered: &BufferedWrites,
    ) -> Option<Document> {
        let Some(sharding) = ordinary_sharding(placement) else {
            let has_answered = state.replies.iter().any(|(known, _)| *known == target);
            return (!has_answered).then(|| run.body.clone());
        };
        let open = state.open.as_ref();
        match open.map_or(OpenPart::All, |open| open.part(sharding, target)) {
            OpenPart::Nothing => None,
            OpenPart::All => Some(run.body.clone()),
            OpenPart::Some(filter) => {
                let statement = narrowed(run.statement, "q", &[filter]);
                Some(self.with_statement(statement.as_ref(), buffered))
            }
        }
    }
}

/// Returns how an ordinary collection is divided; `None` for a time series, and if it is whole in one partition.
fn ordinary_sharding(placement: &Placement) -> Option<&Sharding> {
    let sharding = placement.sharding.as_deref();
    sharding.filter(|sharding| !sharding.key.is_timeseries())
}
