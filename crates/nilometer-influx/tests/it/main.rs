//! Line protocol written and InfluxQL answered over a database in memory.

mod compatibility;
mod into;
mod mappings;
mod oracle;
mod queries;
mod store;
mod subqueries;
