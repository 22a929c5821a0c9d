//! The files of claims, which outlive a reboot: one for each claim, named by its id.
//!
//! A file is the frame with which the claim was reserved, and its checksum (CRC-32C, little-endian). So the decoder
//! is the one of the socket. A file is written beside, synced and renamed. One that cannot be read is reported and
//! kept, and its claim is refused: no claim is better than a wrong one.

use crate::state::replace_file_through;
use gpuslice_engine::crc32c;
use gpuslice_wire::frame::{HEADER_BYTES, RequestId, decode, encode};
use gpuslice_wire::limits::FRAME_BYTES_MAX;
use gpuslice_wire::node::{NodeRequest, Reservation};
use gpuslice_wire::owner::ClaimId;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Bytes of the checksum.
const SUM_BYTES: usize = 4;
/// Most files that are read; a node has fewer slices.
const FILES_MAX: usize = 4096;

/// See the file's head.
#[derive(Clone, Debug)]
pub struct ClaimStore {
    dir: PathBuf,
}

/// A claim's file as read: its words, or what is wrong with it.
type ReadClaim = Result<Reservation, String>;

impl ClaimStore {
    /// The files in `state_dir/claims`.
    pub fn at(state_dir: &Path) -> ClaimStore {
        ClaimStore { dir: state_dir.join("claims") }
    }

    /// A claim's file.
    pub fn path(&self, claim: &ClaimId) -> PathBuf {
        self.dir.join(claim.as_str())
    }

    /// All files, in a fixed order. Files with other names are ignored: a claim's id is never
    /// that of an unfinished file, which has a plus sign in it.
    pub fn read_all(&self) -> Vec<(ClaimId, ReadClaim)> {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return Vec::new();
        };
        let names =
            entries.take(FILES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut all: Vec<ClaimId> = names.filter_map(|name| ClaimId::new(&name).ok()).collect();
        all.sort_unstable();
        all.into_iter().map(|claim| (claim, read(&self.path(&claim), &claim))).collect()
    }

    /// Writes a claim's file.
    ///
    /// # Errors
    /// A system call failed; an older file is unchanged.
    pub fn keep(&self, words: &Reservation) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let mut buffer = [0; FRAME_BYTES_MAX];
        let request = NodeRequest::Reserve { words: *words };
        let len = encode(RequestId(0), &request, &mut buffer).map_err(io::Error::other)?;
        let sum = crc32c(&buffer[..len]).to_le_bytes();
        let beside = self.dir.join(format!("+{}", words.claim));
        replace_file_through(
            &self.path(&words.claim),
            (&beside, 0o600),
            &[&buffer[..len], &sum].concat(),
        )
    }

    /// Deletes a claim's file, if there is one.
    ///
    /// # Errors
    /// A system call failed.
    pub fn forget(&self, claim: &ClaimId) -> io::Result<()> {
        match fs::remove_file(self.path(claim)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => Err(why),
            Err(_) => Ok(()),
            Ok(()) => File::open(&self.dir)?.sync_all(),
        }
    }
}

/// Reads a claim's file.
fn read(path: &Path, claim: &ClaimId) -> ReadClaim {
    let mut bytes = Vec::new();
    let most = (FRAME_BYTES_MAX + SUM_BYTES) as u64;
    File::open(path)
        .and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
        .map_err(|why| why.to_string())?;
    let (frame, sum) =
        bytes.split_last_chunk::<SUM_BYTES>().map_or((&[][..], [0; SUM_BYTES]), |it| (it.0, *it.1));
    if frame.len() < HEADER_BYTES {
        return Err(format!("the file is damaged: {} bytes are no claim", bytes.len()));
    }
    if crc32c(frame).to_le_bytes() != sum {
        return Err("the file is damaged: its checksum is wrong".to_owned());
    }
    match decode(frame) {
        Ok((_, NodeRequest::Reserve { words })) if words.claim == *claim => Ok(words),
        Ok(_) => Err("the file is of another claim".to_owned()),
        Err(why) => Err(format!("the file is damaged: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpuslice_wire::ids::GpuUuid;
    use gpuslice_wire::node::GpuList;
    use gpuslice_wire::owner::Owner;
    use gpuslice_wire::policy::{Class, Gangs};
    use gpuslice_wire::units::Bytes;

    pub fn words(claim: &str) -> Reservation {
        Reservation {
            claim: ClaimId::new(claim).expect("a claim id"),
            owner: Owner::default(),
            gpus: GpuList::new(&[GpuUuid([1; 16])]).expect("one"),
            memory: Bytes(1 << 30),
            share: None,
            share_limit: None,
            weight: None,
            class: Class::Normal,
            gang: Gangs::Auto,
            pinned: None,
        }
    }

    #[test]
    fn claims_are_read_back_and_damaged_ones_are_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = ClaimStore::at(dir.path());
        assert_eq!(store.read_all(), []);
        for claim in ["good", "torn", "flipped", "empty", "moved"] {
            store.keep(&words(claim)).expect("kept");
        }
        let claims = dir.path().join("claims");
        let bytes = fs::read(claims.join("good")).expect("a file");
        fs::write(claims.join("torn"), &bytes[..bytes.len() / 2]).expect("torn");
        fs::write(claims.join("empty"), "").expect("empty");
        fs::rename(claims.join("moved"), claims.join("elsewhere")).expect("moved");
        let mut flipped = bytes.clone();
        flipped[100] ^= 1;
        fs::write(claims.join("flipped"), flipped).expect("flipped");
        fs::write(claims.join("+unfinished"), &bytes).expect("unfinished");
        fs::write(claims.join("huge"), vec![0; 1 << 20]).expect("huge");
        let found: Vec<(String, String)> = store
            .read_all()
            .into_iter()
            .map(|(claim, read)| {
                (claim.to_string(), read.map_or_else(|why| why, |words| words.claim.to_string()))
            })
            .collect();
        let mut found: Vec<(&str, &str)> = found.iter().map(|(a, b)| (&**a, &**b)).collect();
        found.sort_unstable();
        let sum = "the file is damaged: its checksum is wrong";
        assert_eq!(
            found,
            [
                ("elsewhere", "the file is of another claim"),
                ("empty", "the file is damaged: 0 bytes are no claim"),
                ("flipped", sum),
                ("good", "good"),
                ("huge", sum),
                ("torn", sum),
            ]
        );
        let good = words("good").claim;
        store.forget(&good).expect("gone");
        store.forget(&good).expect("twice is once");
        assert!(!claims.join("good").exists());
    }
}
