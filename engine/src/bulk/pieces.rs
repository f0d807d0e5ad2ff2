// SPDX-License-Identifier: Apache-2.0
//! Ranges of a segment, cut into pieces: one entry each. Pure.

use std::ops::Range;

/// Whole chunks of a segment that drives read or write directly in the caller's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Direct {
    pub(super) segment: Range<u64>,
    /// The buffer of that memory.
    pub(super) key: u32,
    /// Where the range starts in it.
    pub(super) buffer_offset_bytes: u64,
}

/// A piece of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) segment: Range<u64>,
    /// The buffer and the place in it, if the piece is transferred without a copy.
    pub(super) direct: Option<(u32, u64)>,
}

/// The pieces of ascending ranges, in order. Ranges start at chunks.
pub(super) struct Pieces<'a> {
    ranges: &'a [Range<u64>],
    direct: &'a [Direct],
    at: u64,
    max_bytes: u64,
    max_direct_bytes: u64,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(
        ranges: &'a [Range<u64>],
        direct: &'a [Direct],
        max_bytes: u64,
        max_direct_bytes: u64,
    ) -> Pieces<'a> {
        Pieces { ranges, direct, at: 0, max_bytes, max_direct_bytes }
    }

    /// The next piece, which stays the next one until [`Pieces::advance`].
    pub(super) fn peek(&mut self) -> Option<Piece> {
        while self.ranges.first().is_some_and(|range| range.end <= range.start.max(self.at)) {
            self.ranges = &self.ranges[1..];
        }
        let range = self.ranges.first()?;
        let start = range.start.max(self.at);
        while self.direct.first().is_some_and(|direct| direct.segment.end <= start) {
            self.direct = &self.direct[1..];
        }
        Some(match self.direct.first() {
            Some(direct) if direct.segment.start <= start => {
                let end = range.end.min(direct.segment.end).min(start + self.max_direct_bytes);
                let offset_bytes = direct.buffer_offset_bytes + (start - direct.segment.start);
                Piece { segment: start..end, direct: Some((direct.key, offset_bytes)) }
            }
            next => {
                let before = next.map_or(u64::MAX, |direct| direct.segment.start);
                let end = range.end.min(before).min(start + self.max_bytes);
                Piece { segment: start..end, direct: None }
            }
        })
    }

    /// Advances past a piece.
    pub(super) fn advance(&mut self, piece: &Piece) {
        self.at = piece.segment.end;
    }
}

/// The whole chunks that contain the ranges of a segment, which ascend.
pub(super) fn chunks_of(
    ranges: &[Range<u64>],
    chunk_bytes: u64,
    segment_bytes: u64,
) -> Vec<Range<u64>> {
    let mut chunks: Vec<Range<u64>> = Vec::new();
    for range in ranges.iter().filter(|range| range.end > range.start) {
        let start = range.start / chunk_bytes * chunk_bytes;
        let end = range.end.next_multiple_of(chunk_bytes).min(segment_bytes);
        match chunks.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => chunks.push(start..end),
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Start and end in the segment, and the buffer of one that moves without a copy.
    type Cut = (u64, u64, Option<(u32, u64)>);

    fn cut(ranges: &[Range<u64>], direct: &[Direct]) -> Vec<Cut> {
        let mut pieces = Pieces::new(ranges, direct, 8, 16);
        let mut cut = Vec::new();
        while let Some(piece) = pieces.peek() {
            assert_eq!(pieces.peek(), Some(piece.clone()), "it stays until it was taken");
            cut.push((piece.segment.start, piece.segment.end, piece.direct));
            pieces.advance(&piece);
        }
        cut
    }

    #[test]
    fn ranges_are_cut_into_pieces() {
        assert_eq!(
            cut(&[0..10, 16..20, 20..20], &[]),
            [(0, 8, None), (8, 10, None), (16, 20, None)]
        );
        assert_eq!(cut(&[], &[]), []);
    }

    #[test]
    fn lent_memory_is_a_piece_of_its_own() {
        let direct = [
            Direct { segment: 4..24, key: 7, buffer_offset_bytes: 100 },
            Direct { segment: 24..28, key: 8, buffer_offset_bytes: 0 },
            Direct { segment: 36..40, key: 9, buffer_offset_bytes: 0 },
        ];
        assert_eq!(
            cut(std::slice::from_ref(&(0..38)), &direct),
            [
                (0, 4, None),
                (4, 20, Some((7, 100))),
                (20, 24, Some((7, 116))),
                (24, 28, Some((8, 0))),
                (28, 36, None),
                (36, 38, Some((9, 0))),
            ]
        );
        // Ranges that begin inside of it, and jump over some.
        assert_eq!(
            cut(&[8..12, 26..30], &direct),
            [(8, 12, Some((7, 104))), (26, 28, Some((8, 2))), (28, 30, None)]
        );
    }

    #[test]
    fn only_needed_chunks_are_read() {
        let ranges = [0..0, 5..12, 12..20, 45..46, 50..58];
        assert_eq!(chunks_of(&ranges, 10, 58), [0..20, 40..58]);
    }
}
