use std::io::Write;

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use proptest::prelude::*;

use super::codecs::XERIAL_MAGIC;
use super::*;

const COMPRESSED: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

fn read(codec: Codec, bytes: &[u8], max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    decompress(codec, bytes, max_bytes)?.read_to_end(&mut out)?;
    Ok(out)
}

#[track_caller]
fn check(codec: Codec, bytes: &[u8], expected: &[u8]) {
    assert_eq!(read(codec, bytes, 1 << 24).expect("decompresses"), expected);
}

fn text(bytes: usize) -> Vec<u8> {
    b"the quick brown fox jumps over the lazy dog; ".iter().copied().cycle().take(bytes).collect()
}

fn lz4(bytes: &[u8], info: FrameInfo) -> Vec<u8> {
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(bytes).expect("to memory");
    encoder.finish().expect("to memory")
}

#[test]
fn codecs_have_kafkas_numbers_and_names() {
    let names: Vec<_> = (0..8).map(|id| Codec::from_id(id).map(|codec| codec.to_string())).collect();
    let expected = ["none", "gzip", "snappy", "lz4", "zstd"].map(|name| Some(name.to_owned()));
    assert_eq!(names[..5], expected);
    assert_eq!(names[5..], [None, None, None]);
}

#[test]
fn what_is_compressed_comes_back() {
    for codec in Codec::ALL {
        for bytes in [0, 1, 100, 32 * 1024, 32 * 1024 + 1, 300_000] {
            let plain = text(bytes);
            check(codec, &compress(codec, &plain).expect("to memory"), &plain);
        }
    }
}

#[test]
fn the_limit_is_exact() {
    for codec in Codec::ALL {
        let compressed = compress(codec, &text(100_000)).expect("to memory");
        assert_eq!(read(codec, &compressed, 100_000).expect("fits").len(), 100_000);
        let error = read(codec, &compressed, 99_999).expect_err("does not fit");
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{codec}");
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        assert_eq!(cause, Some(&TooMuchOutput { max: 99_999 }));
    }
}

#[test]
fn the_end_is_the_end() {
    for codec in COMPRESSED {
        let compressed = compress(codec, &text(100_000)).expect("to memory");
        for cut in 0..compressed.len() {
            match read(codec, &compressed[..cut], 1 << 20) {
                // Snappy's framing has no end mark, so that a cut between blocks gives fewer of them.
                Ok(out) if codec == Codec::Snappy => assert!(out.len() < 100_000),
                // Nothing at all is an empty stream to these two.
                Ok(out) => assert!(cut == 0 && out.is_empty(), "{codec} cut at {cut}"),
                Err(error) => assert_ne!(error.kind(), io::ErrorKind::FileTooLarge),
            }
        }
        let more = [compressed.as_slice(), b"trailing bytes"].concat();
        assert!(read(codec, &more, 1 << 20).is_err(), "{codec}");
    }
}

#[test]
fn gzip_members_and_zstd_frames_follow_each_other() {
    for codec in [Codec::Gzip, Codec::Zstd] {
        let both = [compress(codec, b"one ").expect("to memory"), compress(codec, b"two").expect("to memory")].concat();
        check(codec, &both, b"one two");
    }
}

#[test]
fn snappy_dialects() {
    let plain = text(70_000);
    // librdkafka: one bare block.
    let bare = snap::raw::Encoder::new().compress_vec(&plain).expect("to memory");
    check(Codec::Snappy, &bare, &plain);
    // snappy-java, with the version numbers that other writers put there.
    let mut framed = compress(Codec::Snappy, &plain).expect("to memory");
    assert_eq!(
        framed[..20],
        [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, framed[18], framed[19]]
    );
    framed[8..16].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 7]);
    check(Codec::Snappy, &framed, &plain);
    // Two streams joined.
    check(Codec::Snappy, &framed.repeat(2), &plain.repeat(2));
    // A header without blocks, and blocks of nothing.
    check(Codec::Snappy, &framed[..16], b"");
    check(Codec::Snappy, &[&framed[..16], &[0, 0, 0, 1, 0, 0, 0, 0, 1, 0]].concat(), b"");
}

#[test]
fn a_snappy_block_cannot_ask_for_memory_it_does_not_fill() {
    // A claim of 4 GiB - 1 in five bytes.
    let claim = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0];
    let framed = [&XERIAL_MAGIC[..], &[0; 8], &[0, 0, 0, 8], &claim].concat();
    for bytes in [&claim[..], &framed] {
        // Refused for the claim, not after the memory was taken and the block did not fill it.
        let error = read(Codec::Snappy, bytes, 1 << 40).expect_err("a claim");
        assert!(error.to_string().contains("claims more"), "{error}");
    }
    // The densest real block stays within the allowance.
    let zeros = vec![0; 1 << 20];
    check(Codec::Snappy, &snap::raw::Encoder::new().compress_vec(&zeros).expect("to memory"), &zeros);
}

#[test]
fn lz4_dialects() {
    let plain = text(300_000);
    let info = || FrameInfo::new().block_size(BlockSize::Max64KB);
    for mode in [BlockMode::Independent, BlockMode::Linked] {
        for info in [
            info(),
            info().content_checksum(true),
            info().block_checksums(true),
            info().content_size(Some(300_000)).content_checksum(true).block_checksums(true),
            info().block_size(BlockSize::Max4MB),
        ] {
            let frame = lz4(&plain, info.block_mode(mode));
            assert_eq!(lz4_blocks_are_linked(&frame).expect("a frame"), mode == BlockMode::Linked);
            check(Codec::Lz4, &frame, &plain);
        }
    }
}

#[test]
fn lz4_damage_is_noticed() {
    let info = FrameInfo::new().block_size(BlockSize::Max64KB).content_checksum(true);
    let frame = lz4(&text(1000), info);
    let flips = |at: usize| {
        let mut bad = frame.clone();
        bad[at] ^= 1;
        read(Codec::Lz4, &bad, 1 << 20).is_err()
    };
    assert!(flips(6), "the header's checksum");
    assert!(flips(frame.len() - 1), "the content's checksum");
    assert!(flips(0), "the magic");
    assert!(read(Codec::Lz4, &frame.repeat(2), 1 << 20).is_err(), "two frames: Kafka reads one");
    let legacy = [&0x184c_2102u32.to_le_bytes(), &frame[4..]].concat();
    assert!(read(Codec::Lz4, &legacy, 1 << 20).is_err(), "the legacy frame format");
}

proptest! {
    #[test]
    fn any_bytes_round_trip(plain in prop::collection::vec(any::<u8>(), 0..2000), repeat in 1..50usize) {
        let plain = plain.repeat(repeat);
        for codec in Codec::ALL {
            let compressed = compress(codec, &plain).expect("to memory");
            prop_assert_eq!(read(codec, &compressed, 1 << 20).expect("decompresses"), &plain[..]);
        }
    }

    /// Random bytes seldom get past a magic number, so most of the cases are good input with a few bytes changed.
    #[test]
    fn any_bytes_are_survived(
        noise in prop::collection::vec(any::<u8>(), 0..100),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        for codec in Codec::ALL {
            let _ = read(codec, &noise, 1 << 16);
            let mut changed = compress(codec, &text(500)).expect("to memory");
            for (at, byte) in &changes {
                *at.get_mut(&mut changed) = *byte;
            }
            if let Ok(out) = read(codec, &changed, 1 << 16) {
                prop_assert!(out.len() <= 1 << 16);
            }
            let _ = lz4_blocks_are_linked(&changed);
        }
    }
}

#[test]
fn without_the_feature_the_error_names_codec_and_feature() {
    assert!(Codec::ALL.into_iter().all(Codec::is_built_in), "the tests run with the feature");
    for codec in COMPRESSED {
        let errors = [no_codecs::reader(codec, b"").err(), no_codecs::Compressor::new(codec).err()];
        for error in errors.map(Option::unwrap) {
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            let text = error.to_string();
            assert!(text.contains(&codec.to_string()) && text.contains("`compression`"), "{text}");
        }
    }
}
