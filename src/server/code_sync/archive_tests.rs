//! Archives as they should be and as they should not.

use std::io::{Seek, SeekFrom, Write};

use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use super::*;

/// An archive of files, each with its mode.
fn zipped(entries: &[(&str, u32, &str)]) -> File {
    let mut zip = ZipWriter::new(tempfile::tempfile().unwrap());
    for (name, mode, text) in entries {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .unix_permissions(*mode);
        zip.start_file(*name, options).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap()
}

fn raw(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

#[derive(Debug)]
struct Stored {
    dir: PathBuf,
}

/// Unpacks into a directory of its own below `root`.
fn store(archive: &File, root: &Path) -> Result<Stored, CodeError> {
    let dir = tempfile::tempdir_in(root)?.keep();
    unpack(archive, &dir).map(|_| Stored { dir })
}

#[test]
fn files_are_unpacked_at_their_paths() {
    let dir = tempfile::tempdir().unwrap();
    let archive = zipped(&[("ajet/a.rs", 0o644, "text"), ("ajet/./deep/er/b.rs", 0o4755, "b")]);
    assert_eq!(unpack(&archive, dir.path()).unwrap(), Contents { files: 2, bytes: 5 });
    assert_eq!(fs::read_to_string(dir.path().join("ajet/a.rs")).unwrap(), "text");
    let deep = dir.path().join("ajet/deep/er/b.rs");
    assert_eq!(fs::read_to_string(&deep).unwrap(), "b");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(deep).unwrap().permissions());
    assert_eq!(mode & 0o7111, 0, "no bit of the archive's modes is taken over");
}

#[test]
fn what_leads_elsewhere_or_is_no_file_is_refused_and_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let good = ("ajet/a.py", 0o644, "a");
    for (entries, said) in [
        (vec![good, ("../evil", 0o644, "")], "plain relative path"),
        (vec![good, ("ajet/../../evil", 0o644, "")], "plain relative path"),
        (vec![good, ("/etc/evil", 0o644, "")], "plain relative path"),
        (vec![good, ("C:\\evil", 0o644, "")], "plain relative path"),
        (vec![good, ("..\\evil", 0o644, "")], "plain relative path"),
        (vec![good, ("ajet/./a.py", 0o644, "")], "duplicate zip entry"),
        (vec![good, ("ajet/a.py/below", 0o644, "")], "duplicate zip entry"),
        (vec![], "no files"),
    ] {
        let error = store(&zipped(&entries), root.path()).unwrap_err().to_string();
        assert!(error.contains(said), "{entries:?}: {error}");
    }
    let mut zip = ZipWriter::new(tempfile::tempfile().unwrap());
    zip.add_symlink("ajet/link", "/etc/passwd", SimpleFileOptions::default())
        .unwrap();
    let error = store(&zip.finish().unwrap(), root.path()).unwrap_err().to_string();
    assert!(error.contains("neither a file nor a directory"), "{error}");
}

#[test]
fn what_is_no_zip_or_a_damaged_one_is_refused() {
    let root = tempfile::tempdir().unwrap();
    for bytes in [&b""[..], b"PK", b"not a zip at all", &[0; 4096]] {
        let error = store(&raw(bytes), root.path()).unwrap_err().to_string();
        assert!(error.contains("as a zip archive"), "{error}");
    }
    let mut bytes = Vec::new();
    let mut file = zipped(&[("ajet/a.py", 0o644, "some text that is changed")]);
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    let at = bytes.windows(4).position(|window| window == b"some").unwrap();
    bytes[at] = b'S';
    let error = store(&raw(&bytes), root.path()).unwrap_err().to_string();
    assert!(error.contains("checksum"), "{error}");
    for cut in 0..bytes.len() {
        store(&raw(&bytes[..cut]), root.path()).unwrap_err();
    }
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0xff;
        let _ = store(&raw(&flipped), root.path()); // it may be refused, it must not panic
    }
}

/// Deflated by hand, since the archive's own size is then ours to say.
fn deflated(name: &str, data: &[u8], claimed_size: u32) -> File {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(data).unwrap();
    let packed = encoder.finish().unwrap();
    let mut crc = flate2::Crc::new();
    crc.update(data);
    let head = |out: &mut Vec<u8>| {
        out.extend(20_u16.to_le_bytes()); // version needed
        out.extend(0_u16.to_le_bytes()); // flags
        out.extend(8_u16.to_le_bytes()); // deflate
        out.extend([0; 4]); // time
        out.extend(crc.sum().to_le_bytes());
        out.extend((packed.len() as u32).to_le_bytes());
        out.extend(claimed_size.to_le_bytes());
        out.extend((name.len() as u16).to_le_bytes());
        out.extend(0_u16.to_le_bytes()); // extra
    };
    let mut out = b"PK\x03\x04".to_vec();
    head(&mut out);
    out.extend(name.as_bytes());
    out.extend(&packed);
    let directory = out.len() as u32;
    out.extend(b"PK\x01\x02");
    out.extend(20_u16.to_le_bytes()); // made by
    head(&mut out);
    out.extend([0; 14]); // comment, disk, attributes, offset
    out.extend(name.as_bytes());
    let length = out.len() as u32 - directory;
    out.extend(b"PK\x05\x06");
    out.extend([0; 4]);
    out.extend([1, 0, 1, 0]);
    out.extend(length.to_le_bytes());
    out.extend(directory.to_le_bytes());
    out.extend([0; 2]);
    raw(&out)
}

#[test]
fn deflated_entries_are_unpacked_and_one_that_lies_about_its_size_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let data = b"print('hello')\n".repeat(1000);
    let snapshot = store(&deflated("ajet/a.py", &data, data.len() as u32), root.path()).unwrap();
    assert_eq!(fs::read(snapshot.dir.join("ajet/a.py")).unwrap(), data);
    let error = store(&deflated("ajet/a.py", &data, 10), root.path())
        .unwrap_err()
        .to_string();
    assert!(error.contains("damaged"), "{error}");
}

/// An archive whose directory has `listed` entries, all of one stored file, and whose end record says `said`.
fn repeated(listed: u64, said: u64, wide: bool) -> File {
    let name = b"ajet/a.py";
    let header = |magic: &[u8], middle: &[u8], tail: usize| {
        let mut out = magic.to_vec();
        out.extend(middle);
        out.extend([0; 8]); // flags, method, time
        out.extend([0; 12]); // checksum and sizes of nothing
        out.extend((name.len() as u16).to_le_bytes());
        out.extend([0; 2]);
        out.extend(vec![0; tail]);
        out.extend(name);
        out
    };
    let mut bytes = header(b"PK\x03\x04", &[20, 0], 0);
    let start = bytes.len() as u64;
    let entry = header(b"PK\x01\x02", &[20, 0, 20, 0], 14);
    (0..listed).for_each(|_| bytes.extend(&entry));
    let (length, end) = (bytes.len() as u64 - start, bytes.len() as u64);
    if wide {
        bytes.extend(b"PK\x06\x06");
        bytes.extend(44_u64.to_le_bytes());
        bytes.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        [said, said, length, start]
            .iter()
            .for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.extend(b"PK\x06\x07\0\0\0\0");
        bytes.extend(end.to_le_bytes());
        bytes.extend([1, 0, 0, 0]);
    }
    let short = if wide { u16::MAX } else { said as u16 };
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    bytes.extend(short.to_le_bytes());
    bytes.extend(short.to_le_bytes());
    bytes.extend((length as u32).to_le_bytes());
    bytes.extend((start as u32).to_le_bytes());
    bytes.extend([0; 2]);
    raw(&bytes)
}

/// Seen with an archive of 205 MB whose 4 million entries were read before they were counted.
#[test]
fn too_many_entries_are_refused_by_the_end_record() {
    let root = tempfile::tempdir().unwrap();
    for (listed, said, wide, expected) in [
        (
            1,
            50_001,
            false,
            "the zip archive has 50001 entries; the maximum is 50000",
        ),
        (
            1,
            4_000_000,
            true,
            "the zip archive has 4000000 entries; the maximum is 50000",
        ),
        (
            1,
            u64::MAX,
            true,
            "the zip archive has 18446744073709551615 entries; the maximum is 50000",
        ),
        (
            1,
            50_000,
            false,
            "the central directory has fewer entries than declared",
        ),
        (60_000, 2, true, "duplicate zip entry \"ajet/a.py\""),
        (1, 2, false, "the central directory has fewer entries than declared"),
    ] {
        let error = store(&repeated(listed, said, wide), root.path())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    for wide in [false, true] {
        let snapshot = store(&repeated(1, 1, wide), root.path()).unwrap();
        assert_eq!(fs::read(snapshot.dir.join("ajet/a.py")).unwrap(), b"");
    }
}

#[test]
fn entries_that_share_bytes_are_refused() {
    let mut bytes = Vec::new();
    let mut file = zipped(&[("ajet/a", 0o644, "some text"), ("ajet/b", 0o644, "some text")]);
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    let central: Vec<usize> = (0..bytes.len() - 4)
        .filter(|at| bytes[*at..].starts_with(b"PK\x01\x02"))
        .collect();
    let whole = bytes.len() as u32;
    for at in &central {
        bytes[at + 20..at + 24].copy_from_slice(&(whole - 60).to_le_bytes()); // bytes in the archive
    }
    let root = tempfile::tempdir().unwrap();
    let error = store(&raw(&bytes), root.path()).unwrap_err().to_string();
    assert!(error.contains("is damaged"), "{error}");
}
