//! What a client sees: commands in, replies out.

mod capped;
mod change_commands;
mod changes_and_crashes;
mod clustered;
mod collations;
mod duplicates;
mod geo;
mod golden;
mod index_answers;
mod indexed_answers;
mod indexed_changes;
mod language;
mod measurement_changes;
mod outputs;
mod query_commands;
mod random;
mod readers;
mod rewrites;
mod rules;
mod same_answers;
mod short_memory;
mod statistics;
mod stuck_disk;
mod support;
mod validators;
mod warm_reads;
