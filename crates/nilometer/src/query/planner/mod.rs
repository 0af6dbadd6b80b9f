//! Planning: from stages and a namespace to operators.
//!
//! ```text
//! namespace ── resolve views ──► Input + stages            logical   what is read, what is done to it
//!                                   │ rules                rules     work moves towards the data
//!                                   ▼
//!                                LogicalPlan
//!                                   │ Builder              physical  operators, ready to pull
//!                                   ▼
//!                                BoxOperator
//! ```
//!
//! A plan without any rule applied is already right: it reads everything and does every stage as
//! written. Rules only move work; each states when the answer is provably the same and does not
//! fire otherwise. [`ExecOptions::no_rules`](crate::query::exec::ExecOptions) leaves them all out,
//! which is how tests hold one against the other.

pub mod access;
pub mod bounds;
pub mod logical;
pub mod near;
pub mod needs;
pub mod physical;
pub mod resolve;
pub mod rules;

pub use logical::{
    AccessPath, BucketInput, IndexChoice, Input, LogicalPlan, MetaInput, RecordInput, Unpack,
};
pub use physical::Builder;
