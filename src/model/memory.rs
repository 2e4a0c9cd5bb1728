//! Free and used memory, and retries with less after an out-of-memory error.

/// Returns the bytes of memory available to this process, if known.
pub fn available() -> Option<usize> {
    bytes("/proc/meminfo", "MemAvailable:")
}

/// Returns the resident memory of this process in bytes, if the system reports it.
pub fn resident() -> Option<usize> {
    bytes("/proc/self/status", "VmRSS:")
}

/// Returns the peak resident memory of this process in MiB, if the system reports it.
pub fn peak_mib() -> Option<f64> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).ok()?;
    let unit = if cfg!(target_os = "macos") { 1.0 } else { 1024.0 }; // bytes on macOS, KiB elsewhere
    Some(usage.max_rss() as f64 * unit / (1024.0 * 1024.0))
}

/// Returns the bytes of a line such as `VmRSS:   1024 kB`.
fn bytes(file: &str, name: &str) -> Option<usize> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes.saturating_mul(1024))
}

/// Returns whether a tensor operation failed because it ran out of memory, on any device.
pub fn is_out_of_memory(error: &candle_core::Error) -> bool {
    let text = error.to_string();
    ["OUT_OF_MEMORY", "out of memory", "ALLOC_FAILED"]
        .iter()
        .any(|words| text.contains(words))
}

/// Runs `attempt` with a size, halving the size each time that it runs out of memory. Returns its result and the size
/// that fitted.
///
/// # Errors
/// Fails with the attempt's error: at once unless it is out of memory, and for that if even the size `least` is too
/// large.
pub fn retry_smaller<T, E>(
    size: usize,
    least: usize,
    is_out_of_memory: impl Fn(&E) -> bool,
    mut attempt: impl FnMut(usize) -> Result<T, E>,
) -> Result<(T, usize), E> {
    let mut size = size;
    loop {
        match attempt(size) {
            Ok(done) => return Ok((done, size)),
            Err(error) if size > least && is_out_of_memory(&error) => size = (size / 2).max(least),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_and_no_more_than_its_peak() {
        let peak = peak_mib().unwrap();
        assert!(peak > 1.0, "{peak}");
        if cfg!(target_os = "linux") {
            let resident = resident().unwrap() as f64 / f64::from(1 << 20);
            assert!(resident > 1.0 && resident <= peak_mib().unwrap() + 1.0, "{resident}");
            assert!(available().unwrap() > 0);
        }
    }

    /// An attempt that fits up to a size, with the sizes tried.
    fn tried(size: usize, fits: usize, out_of_memory: bool) -> (Result<((), usize), &'static str>, Vec<usize>) {
        let mut sizes = vec![];
        let result = retry_smaller(
            size,
            1,
            |_: &&str| out_of_memory,
            |size| {
                sizes.push(size);
                (size <= fits).then_some(()).ok_or("no")
            },
        );
        (result, sizes)
    }

    #[test]
    fn the_size_is_halved_until_it_fits_or_cannot_be_halved() {
        assert_eq!(tried(100, 100, true), (Ok(((), 100)), vec![100]));
        assert_eq!(tried(100, 30, true), (Ok(((), 25)), vec![100, 50, 25]));
        assert_eq!(tried(5, 0, true), (Err("no"), vec![5, 2, 1]));
        assert_eq!(
            tried(100, 30, false),
            (Err("no"), vec![100]),
            "another error is not tried again"
        );
    }

    #[test]
    fn want_of_memory_is_known_by_the_drivers_words() {
        let error = |text: &str| candle_core::Error::Msg(text.into());
        for text in [
            r#"DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#,
            "CublasError(CUBLAS_STATUS_ALLOC_FAILED)",
        ] {
            assert!(is_out_of_memory(&error(text)), "{text}");
        }
        assert!(!is_out_of_memory(&error("CUDA_ERROR_ILLEGAL_ADDRESS")));
    }
}
