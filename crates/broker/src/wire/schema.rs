//! Schemas as data, and the walk over bytes that they describe.

use std::fmt;

/// A message that its schema does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    /// Where in the body, in bytes.
    pub(crate) position: usize,
    /// What is wrong there.
    pub(crate) what: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.what, self.position)
    }
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// An integer, a boolean or a UUID of so many bytes.
    Fixed(usize),
    /// Text.
    String,
    /// Bytes, also records.
    Bytes,
    /// A structure in place.
    Struct(&'static [Field]),
    /// An array of fixed-size values.
    Fixeds(usize),
    /// An array of texts.
    Strings,
    /// An array of structures.
    Structs(&'static [Field]),
}

/// A field of a structure, in wire order; tagged ones come last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    kind: Kind,
    since: i16,
    until: i16,
    nullable_since: i16,
    tag: Option<u32>,
}

impl Field {
    /// A field of every version that is never null.
    pub(super) const fn of(kind: Kind) -> Self {
        Self { kind, since: 0, until: i16::MAX, nullable_since: i16::MAX, tag: None }
    }

    /// Present from this version on.
    pub(super) const fn since(self, version: i16) -> Self {
        Self { since: version, ..self }
    }

    /// Present up to this version.
    pub(super) const fn until(self, version: i16) -> Self {
        Self { until: version, ..self }
    }

    /// May be null from this version on.
    pub(super) const fn nullable(self, since: i16) -> Self {
        Self { nullable_since: since, ..self }
    }

    /// Stands in the tag section.
    pub(super) const fn tag(self, tag: u32) -> Self {
        Self { tag: Some(tag), ..self }
    }

    fn is_in(&self, version: i16) -> bool {
        version >= self.since && version <= self.until
    }
}

/// A request or a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    /// The fields of its outermost structure.
    pub(super) fields: &'static [Field],
    /// The first version with compact lengths and tag sections.
    pub(super) flexible_since: i16,
}

/// The longest text, in whatever form its length is written.
const STRING_BYTES_MAX: usize = 0x7fff;

/// What decoding makes of a structure, at most, whatever its fields: the largest of the protocol crate's is 136 bytes.
const STRUCT_DECODED_BYTES: usize = 136;
/// What it makes of a text, besides the characters, which it shares with the frame.
const STRING_DECODED_BYTES: usize = 32;
/// What it makes of an unknown tag: an entry of a B-tree whose nodes may be half full.
const TAG_DECODED_BYTES: usize = 96;

/// Walks over the message that `body` begins with and returns its length, refusing it if its counts do not fit the bytes
/// that are left or if its arrays and tags would take more than `decoded_bytes_max`.
pub(super) fn walk(message: &Message, version: i16, body: &[u8], decoded_bytes_max: usize) -> Result<usize, Malformed> {
    let flexible = version >= message.flexible_since;
    let mut walk = Walk { body, position: 0, version, flexible, budget: decoded_bytes_max };
    walk.structure(message.fields)?;
    Ok(walk.position)
}

/// The length of the tag section that `bytes` begins with.
pub(super) fn tag_section_bytes(bytes: &[u8], decoded_bytes_max: usize) -> Result<usize, Malformed> {
    let mut walk = Walk { body: bytes, position: 0, version: 0, flexible: true, budget: decoded_bytes_max };
    walk.tags(&[])?;
    Ok(walk.position)
}

struct Walk<'a> {
    body: &'a [u8],
    position: usize,
    version: i16,
    flexible: bool,
    budget: usize,
}

impl Walk<'_> {
    fn structure(&mut self, fields: &'static [Field]) -> Result<(), Malformed> {
        let version = self.version;
        for field in fields.iter().filter(|field| field.tag.is_none() && field.is_in(version)) {
            self.field(field)?;
        }
        if self.flexible { self.tags(fields) } else { Ok(()) }
    }

    fn field(&mut self, field: &Field) -> Result<(), Malformed> {
        let nullable = self.version >= field.nullable_since;
        match field.kind {
            Kind::Fixed(bytes) => self.skip(bytes),
            Kind::String => self.string(nullable),
            Kind::Bytes => match self.length(4, nullable)? {
                Some(bytes) => self.skip(bytes),
                None => Ok(()),
            },
            // A byte says whether there is one.
            Kind::Struct(fields) if nullable => {
                let at = self.position;
                self.skip(1)?;
                match self.body[at] {
                    1 => self.structure(fields),
                    0xff => Ok(()),
                    _ => Err(self.malformed("neither null nor a value")),
                }
            }
            Kind::Struct(fields) => self.structure(fields),
            Kind::Fixeds(bytes) => {
                let count = self.count(nullable, bytes, bytes)?;
                // The count was checked against the bytes left, so the product is below their number.
                self.skip(count * bytes)
            }
            Kind::Strings => {
                let least = if self.flexible { 1 } else { 2 };
                for _ in 0..self.count(nullable, least, STRING_DECODED_BYTES)? {
                    self.string(false)?;
                }
                Ok(())
            }
            Kind::Structs(fields) => {
                let least = self.least_bytes(fields);
                for _ in 0..self.count(nullable, least, STRUCT_DECODED_BYTES)? {
                    self.structure(fields)?;
                }
                Ok(())
            }
        }
    }

    fn string(&mut self, nullable: bool) -> Result<(), Malformed> {
        match self.length(2, nullable)? {
            // The compact form could say more; Kafka's own reader does not take it either.
            Some(bytes) if bytes > STRING_BYTES_MAX => Err(self.malformed("a text longer than any may be")),
            Some(bytes) => self.skip(bytes),
            None => Ok(()),
        }
    }

    /// The count of an array of elements that take `least` bytes or more on the wire and `decoded` bytes in memory.
    fn count(&mut self, nullable: bool, least: usize, decoded: usize) -> Result<usize, Malformed> {
        let count = self.length(4, nullable)?.unwrap_or(0);
        if count > self.left() / least.max(1) {
            return Err(self.malformed("an array longer than the message"));
        }
        self.spend(count.saturating_mul(decoded))?;
        Ok(count)
    }

    /// A length or count: a varint that is one more in flexible versions, else an integer of `bytes` bytes.
    fn length(&mut self, bytes: usize, nullable: bool) -> Result<Option<usize>, Malformed> {
        let length = if self.flexible {
            usize::try_from(self.varint()?).unwrap_or(usize::MAX).checked_sub(1)
        } else {
            let (body, at) = (self.body, self.position);
            self.skip(bytes)?;
            let raw = &body[at..self.position];
            let value =
                raw.iter().skip(1).fold(i64::from(raw[0].cast_signed()), |value, &byte| value << 8 | i64::from(byte));
            if value < -1 {
                return Err(self.malformed("a negative length"));
            }
            usize::try_from(value).ok()
        };
        if length.is_none() && !nullable {
            return Err(self.malformed("null where a value is required"));
        }
        Ok(length)
    }

    /// Tags are unsigned varints in rising order, each with the size of what follows.
    fn tags(&mut self, fields: &'static [Field]) -> Result<(), Malformed> {
        let count = self.varint()?;
        let mut next = 0u64;
        for _ in 0..count {
            let tag = self.varint()?;
            if u64::from(tag) < next {
                return Err(self.malformed("tags out of order"));
            }
            next = u64::from(tag) + 1;
            let size = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
            let at = self.position;
            let known = fields.iter().find(|field| field.tag == Some(tag) && field.is_in(self.version));
            match known {
                Some(field) => self.field(field)?,
                None => {
                    self.spend(TAG_DECODED_BYTES)?;
                    self.skip(size)?;
                }
            }
            if self.position - at != size {
                return Err(self.malformed("a tagged field of another size than it says"));
            }
        }
        Ok(())
    }

    fn varint(&mut self) -> Result<u32, Malformed> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let &byte = self.body.get(self.position).ok_or_else(|| self.malformed("the end of the message"))?;
            self.position += 1;
            if shift == 28 && byte > 0x0f {
                return Err(self.malformed("a varint beyond 32 bits"));
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }

    /// The fewest bytes a structure takes in this version.
    fn least_bytes(&self, fields: &'static [Field]) -> usize {
        let of = |field: &Field| match field.kind {
            Kind::Fixed(bytes) => bytes,
            Kind::Struct(_) if self.version >= field.nullable_since => 1,
            Kind::Struct(fields) => self.least_bytes(fields),
            _ if self.flexible => 1,
            Kind::String => 2,
            _ => 4,
        };
        let own: usize = fields.iter().filter(|field| field.tag.is_none() && field.is_in(self.version)).map(of).sum();
        own + usize::from(self.flexible)
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Malformed> {
        if bytes > self.left() {
            return Err(self.malformed("a field longer than the message"));
        }
        self.position += bytes;
        Ok(())
    }

    fn spend(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.budget =
            self.budget.checked_sub(bytes).ok_or_else(|| self.malformed("more elements than one message may have"))?;
        Ok(())
    }

    fn left(&self) -> usize {
        self.body.len() - self.position
    }

    fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { position: self.position, what }
    }
}
