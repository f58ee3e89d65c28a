//! The public face on nodes in memory, most of it under tokio's paused clock. Only two tests of `runtime::closing` need a
//! server.

mod examples;
mod interface;
mod metrics;
mod one_node;
mod runtime;
mod users_service;
