//! The built server, spoken to over a socket in raw bytes.

mod access;
mod bad_input;
mod bench;
mod capped_durability;
mod change_durability;
mod client;
mod commands;
mod dump;
mod duplicate_durability;
mod durability;
mod encryption;
mod format;
mod http;
mod index_durability;
mod malformed;
mod messages;
mod process;
mod random;
mod server;
mod transfer;
mod upkeep;
mod web;
mod writes;
