//! The longer documents, as they are in the source under `docs/`. There is nothing to call in here: these modules exist in
//! this documentation only.
//!
//! | you | read |
//! | --- | --- |
//! | use it | [migrating], [limits], [waiting], [fencing], [cli] |
//! | operate it | [operations], [cli], [benchmarks] |
//! | review it | [safety], [limits], [design], [testing] |
//! | change it | [design], [testing], [changelog] |
//!
//! The front page with the table of all defaults is `README.md` in the source. Diagrams are shown as the text they are
//! made from, and the plots of [benchmarks] are files beside it.

// The documents link to each other by file name, for whoever reads them in the source, and have a list of these links at
// their end. In Markdown the first definition of a link counts, so that these, put before a document, make the same links
// lead to the modules here. Rewriting the text instead would need a build script.
macro_rules! document {
    ($(#[doc = $summary:literal] $name:ident $file:literal)*) => {$(
        #[doc = $summary]
        ///
        /// [benchmarks.md]: crate::docs::benchmarks
        /// [cli.md]: crate::docs::cli
        /// [design.md]: crate::docs::design
        /// [fencing.md]: crate::docs::fencing
        /// [fencing.md#exactly-once]: crate::docs::fencing#exactly-once
        /// [limits.md]: crate::docs::limits
        /// [migrating.md]: crate::docs::migrating
        /// [operations.md]: crate::docs::operations
        /// [operations.md#access]: crate::docs::operations#access
        /// [operations.md#restarts]: crate::docs::operations#restarts
        /// [safety.md]: crate::docs::safety
        /// [testing.md]: crate::docs::testing
        /// [waiting.md]: crate::docs::waiting
        ///
        #[doc = include_str!($file)]
        pub mod $name {}
    )*};
}

document! {
    /// What it costs, beside the bare `redis` crate and beside other clients.
    benchmarks "../docs/benchmarks.md"
    /// What changed, version by version.
    changelog "../CHANGELOG.md"
    /// The command line tool.
    cli "../docs/cli.md"
    /// How it is built, and why.
    design "../docs/design.md"
    /// Fencing tokens, and what a resource has to do with them.
    fencing "../docs/fencing.md"
    /// What this lock does not do, and what can be said against it.
    limits "../docs/limits.md"
    /// From another client to this one.
    migrating "../docs/migrating.md"
    /// How to run the nodes: settings, restarts, access rules, metrics, alerts.
    operations "../docs/operations.md"
    /// What holds under which assumption, and which test shows it.
    safety "../docs/safety.md"
    /// How all of it is shown to hold.
    testing "../docs/testing.md"
    /// Waiting in the queue.
    waiting "../docs/waiting.md"
}
