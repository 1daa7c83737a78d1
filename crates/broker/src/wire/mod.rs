//! Looking at a message before it is decoded.
//!
//! kafka-protocol's decoder reserves memory by the counts it meets (`Vec::with_capacity` on the number from the wire):
//! four bytes are enough to make it ask for 300 GB. [`check_request`] and [`check_response`] therefore walk the raw
//! bytes by the message's schema first, allocate nothing, and refuse a message whose counts do not fit the bytes that
//! are there, or that would grow out of proportion when decoded.

mod admin;
mod fetch_response;
mod groups;
mod schema;
mod security;
mod tables;
mod transactions;

use kafka_protocol::messages::ApiKey;

pub(crate) use fetch_response::encode_fetch_response;
pub(crate) use schema::Malformed;

/// What a request may take once decoded, besides the bytes of its frame, which strings and records share. Enough for
/// 32,000 partitions in one Fetch; a request of empty strings, each of which takes 80 bytes of memory for its two on the
/// wire, ends here.
const REQUEST_DECODED_BYTES_MAX: usize = 4 << 20;

/// The same for a response, for each byte of its frame: a broker is trusted with more, not with everything.
const RESPONSE_DECODED_FACTOR: usize = 16;

/// Checks the body of a request of this API and version, and returns the length of the message in it.
///
/// What follows the message is for the caller to ignore, as Kafka does: librdkafka (2.16 at least) asks for all topics
/// by Metadata 9 and up with three bytes too many.
pub(crate) fn check_request(api: ApiKey, version: i16, body: &[u8]) -> Result<usize, Malformed> {
    let message = tables::request(api).ok_or(Malformed { position: 0, what: "no schema for this API" })?;
    schema::walk(message, version, body, REQUEST_DECODED_BYTES_MAX)
}

/// Checks the body of a response likewise. The whole of `body` must be the message.
pub(crate) fn check_response(api: ApiKey, version: i16, body: &[u8]) -> Result<(), Malformed> {
    let message = tables::response(api).ok_or(Malformed { position: 0, what: "no schema for this API" })?;
    let limit = REQUEST_DECODED_BYTES_MAX.max(body.len().saturating_mul(RESPONSE_DECODED_FACTOR));
    let position = schema::walk(message, version, body, limit)?;
    if position == body.len() { Ok(()) } else { Err(Malformed { position, what: "bytes left over" }) }
}

/// Checks a tag section, such as the one that ends a version 2 request header, and returns its length.
pub(crate) fn tag_section_bytes(bytes: &[u8]) -> Result<usize, Malformed> {
    schema::tag_section_bytes(bytes, REQUEST_DECODED_BYTES_MAX)
}

#[cfg(test)]
pub(crate) mod tests;
