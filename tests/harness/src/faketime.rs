//! Programs whose wall clock is moved, by a library that stands between them and the C library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that moves a process's clock, where it is installed.
pub fn faketime() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("REDQUORUM_FAKETIME") {
        return Some(path.into());
    }
    let libraries = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(Path::new);
    let inside = libraries.iter().filter_map(|library| library.read_dir().ok()).flatten().flatten();
    let folders = inside.map(|entry| entry.path()).chain(libraries.map(Path::to_owned));
    let candidates = folders.flat_map(|folder| {
        ["faketime/libfaketimeMT.so.1", "libfaketimeMT.so.1"].map(|name| folder.join(name))
    });
    candidates.into_iter().find(|candidate| candidate.is_file())
}

/// Lets `library` move the wall clock of the program by what the file `clock` says, in seconds with a sign.
///
/// The file is read at every look, so that the clock steps when it changes. What shows time gone by stays as it is, as it
/// does when an administrator sets the clock.
///
/// The C library is named as well, so that memory comes from there: jemalloc asks for the time before the library that
/// changes it is ready.
pub fn with_clock_in<'c>(command: &'c mut Command, library: &Path, clock: &Path) -> &'c mut Command {
    forget_the_dead();
    command.env("LD_PRELOAD", format!("{}:libc.so.6", library.display()));
    command.env("FAKETIME_TIMESTAMP_FILE", clock).env("FAKETIME_NO_CACHE", "1");
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1")
}

/// Moves the clock in a file by so many seconds from then on.
pub fn set_clock(clock: &Path, seconds: f64) {
    // Whole at any moment: the file is read while it is written.
    let next = clock.with_extension("next");
    std::fs::write(&next, format!("{seconds:+.3}\n")).expect("a file for the clock");
    std::fs::rename(next, clock).expect("a file for the clock");
}

/// Removes what the library left in shared memory for processes that were killed. A later process with the number of one of
/// them would not start.
fn forget_the_dead() {
    for entry in Path::new("/dev/shm").read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| {
            name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"))
        });
        if number.is_some_and(|number| !Path::new("/proc").join(number).exists()) {
            // Another test may be quicker.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
