//! Requests as data: reads `requests.txt`, builds frames of any version, and knows where their counts are.
//!
//! This is on purpose not the broker's own table: a mistake there must not hide itself here.

use highwater_tests::Random;

/// The name that requests ask for: a topic that is there.
pub(super) const TOPIC: &str = "hostile";

/// One request of the protocol.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) key: i16,
    pub(super) name: String,
    pub(super) versions: (i16, i16),
    flexible_from: i16,
    fields: Vec<Field>,
}

#[derive(Debug)]
struct Field {
    name: String,
    kind: Kind,
    versions: (i16, i16),
    nullable_from: Option<i16>,
    tag: Option<u8>,
    value: Option<String>,
}

#[derive(Debug)]
enum Kind {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Uuid,
    Text,
    Bytes,
    Array(Box<Self>),
    Struct(Vec<Field>),
}

/// How a count is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// Two bytes, of a text.
    Int16,
    /// Four bytes, of an array or of bytes.
    Int32,
    /// An unsigned varint, one more than the count (compact forms) or the count itself (tags).
    Varint,
}

/// A place in a frame that says how much of something follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Count {
    /// Where it starts, from the frame's length prefix on.
    pub(super) at: usize,
    /// How many bytes it has now.
    pub(super) bytes: usize,
    pub(super) width: Width,
    /// Whether it counts elements of an array.
    pub(super) of_array: bool,
}

/// A whole frame with its length prefix.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    pub(super) counts: Vec<Count>,
}

impl Frame {
    /// Replaces a count and puts the frame's length right.
    pub(super) fn with_count(&self, count: Count, value: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.splice(count.at..count.at + count.bytes, value.iter().copied());
        fix_length(&mut bytes);
        bytes
    }
}

/// Writes the length of what follows into a frame's prefix.
pub(super) fn fix_length(frame: &mut [u8]) {
    let length = i32::try_from(frame.len() - 4).expect("frames are small");
    frame[..4].copy_from_slice(&length.to_be_bytes());
}

/// All requests of `requests.txt`.
pub(super) fn apis() -> Vec<Api> {
    let lines = include_str!("requests.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(parse_api).collect()
}

fn parse_api(line: &str) -> Api {
    let (head, fields) = line.split_once(": ").expect("a colon follows the head");
    let [key, name, versions, flexible] = head.split(' ').collect::<Vec<_>>()[..] else { panic!("{head}") };
    let mut parser = Parser { text: fields };
    let fields = parser.fields();
    assert!(parser.text.is_empty(), "{name}: cannot read {:?}", parser.text);
    Api {
        key: key.parse().expect("a number"),
        name: name.to_owned(),
        versions: version_range(versions),
        flexible_from: flexible.parse().expect("a number"),
        fields,
    }
}

fn version_range(text: &str) -> (i16, i16) {
    let number = |text: &str| text.parse().expect("a version");
    match (text.strip_suffix('+'), text.split_once('-')) {
        (Some(from), _) => (number(from), i16::MAX),
        (None, Some((from, to))) => (number(from), number(to)),
        (None, None) => (number(text), number(text)),
    }
}

struct Parser<'a> {
    text: &'a str,
}

impl<'a> Parser<'a> {
    fn fields(&mut self) -> Vec<Field> {
        let mut fields = vec![self.field()];
        while self.eat(", ") {
            fields.push(self.field());
        }
        fields
    }

    fn field(&mut self) -> Field {
        let name = self.until(":").to_owned();
        assert!(self.eat(":"), "{name}: no type");
        let kind = self.kind();
        let mut nullable_from = None;
        if self.eat("?") {
            let from = self.until(" @=,}#]");
            nullable_from = Some(if from.is_empty() { 0 } else { version_range(from).0 });
        }
        let tag = self.eat(" #").then(|| self.until("@").parse().expect("a tag"));
        let versions = if self.eat("@") { version_range(self.until("=,}]")) } else { (0, i16::MAX) };
        let value = self.eat("=").then(|| self.until(",}]").to_owned());
        Field { name, kind, versions, nullable_from, tag, value }
    }

    fn kind(&mut self) -> Kind {
        if self.eat("[") {
            let element = self.kind();
            assert!(self.eat("]"), "an array is not closed before {:?}", self.text);
            return Kind::Array(Box::new(element));
        }
        if self.eat("{") {
            let fields = self.fields();
            assert!(self.eat("}"), "a struct is not closed before {:?}", self.text);
            return Kind::Struct(fields);
        }
        match self.until("?@=,}]# ") {
            "bool" => Kind::Bool,
            "i8" => Kind::Int8,
            "i16" => Kind::Int16,
            "i32" => Kind::Int32,
            "i64" => Kind::Int64,
            "uuid" => Kind::Uuid,
            "str" => Kind::Text,
            "bytes" | "records" => Kind::Bytes,
            other => panic!("there is no type {other:?}"),
        }
    }

    fn eat(&mut self, word: &str) -> bool {
        let rest = self.text.strip_prefix(word);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    fn until(&mut self, ends: &str) -> &'a str {
        let end = self.text.find(|character| ends.contains(character)).unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        self.text = rest;
        word
    }
}

impl Api {
    /// A frame that the broker has no reason to refuse, with this correlation id. `records` is the batch to produce.
    /// Arrays have one to three elements.
    pub(super) fn frame(
        &self,
        version: i16,
        correlation_id: i32,
        topic_id: [u8; 16],
        records: &[u8],
        random: &mut Random,
    ) -> Frame {
        let flexible = version >= self.flexible_from;
        let mut writer = Writer { bytes: vec![0; 4], counts: Vec::new(), version, flexible, topic_id, records, random };
        writer.bytes.extend(self.key.to_be_bytes());
        writer.bytes.extend(version.to_be_bytes());
        writer.bytes.extend(correlation_id.to_be_bytes());
        // The client id never uses the compact form.
        writer.count(7, Width::Int16, false);
        writer.bytes.extend(b"hostile");
        if flexible {
            writer.count(0, Width::Varint, false);
        }
        writer.fields(&self.fields);
        let (mut bytes, counts) = (writer.bytes, writer.counts);
        fix_length(&mut bytes);
        Frame { bytes, counts }
    }
}

struct Writer<'a> {
    bytes: Vec<u8>,
    counts: Vec<Count>,
    version: i16,
    flexible: bool,
    topic_id: [u8; 16],
    records: &'a [u8],
    random: &'a mut Random,
}

impl Writer<'_> {
    fn fields(&mut self, fields: &[Field]) {
        let here = |field: &&Field, version: i16| field.versions.0 <= version && version <= field.versions.1;
        let version = self.version;
        for field in fields.iter().filter(|field| field.tag.is_none()).filter(|field| here(field, version)) {
            self.value(field, &field.kind);
        }
        if self.flexible {
            let tagged = fields.iter().filter(|field| field.tag.is_some()).filter(|field| here(field, version));
            let tagged: Vec<&Field> = tagged.collect();
            self.count(tagged.len(), Width::Varint, true);
            for field in tagged {
                self.bytes.extend(varint(u32::from(field.tag.unwrap_or_default())));
                self.tagged(field);
            }
        }
    }

    /// A tagged field's size and content. The size comes first and is known last.
    fn tagged(&mut self, field: &Field) {
        let (bytes, counts) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.counts));
        self.value(field, &field.kind);
        let content = std::mem::replace(&mut self.bytes, bytes);
        let inner = std::mem::replace(&mut self.counts, counts);
        self.count(content.len(), Width::Varint, false);
        let shift = self.bytes.len();
        self.counts.extend(inner.into_iter().map(|count| Count { at: count.at + shift, ..count }));
        self.bytes.extend(content);
    }

    fn value(&mut self, field: &Field, kind: &Kind) {
        let number = || {
            let value = field.value.as_deref().unwrap_or("0");
            value.parse::<i64>().unwrap_or_else(|_| panic!("{}: {value:?} is no number", field.name))
        };
        match kind {
            Kind::Bool => self.bytes.push(u8::from(number() != 0)),
            Kind::Int8 => self.bytes.push(number().to_be_bytes()[7]),
            Kind::Int16 => self.bytes.extend(&number().to_be_bytes()[6..]),
            Kind::Int32 => self.bytes.extend(&number().to_be_bytes()[4..]),
            Kind::Int64 => self.bytes.extend(number().to_be_bytes()),
            Kind::Uuid => self.bytes.extend(self.topic_id),
            Kind::Text => match field.value.as_deref() {
                Some("null") => self.null(Width::Int16),
                // Versions that have the id want the name null beside it.
                None if field.nullable_from.is_some_and(|from| from > 0 && self.version >= from) => {
                    self.null(Width::Int16)
                }
                text => self.text(text.unwrap_or(TOPIC)),
            },
            Kind::Bytes => {
                let records = self.records;
                self.length(records.len(), Width::Int32, false);
                self.bytes.extend(records);
            }
            Kind::Array(element) => {
                let count = 1 + self.random.below(3);
                self.length(count, Width::Int32, true);
                for _ in 0..count {
                    self.value(field, element);
                }
            }
            Kind::Struct(fields) => {
                // A byte says whether there is one, where it may be null; what a nullable array is made of may not.
                let is_nullable = field.nullable_from.is_some() && matches!(field.kind, Kind::Struct(_));
                match field.value.as_deref() {
                    Some("null") if is_nullable => self.bytes.push(0xff),
                    _ if is_nullable => {
                        self.bytes.push(1);
                        self.fields(fields);
                    }
                    _ => self.fields(fields),
                }
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.length(text.len(), Width::Int16, false);
        self.bytes.extend(text.as_bytes());
    }

    fn null(&mut self, width: Width) {
        match (self.flexible, width) {
            (true, _) => self.bytes.push(0),
            (false, Width::Int16) => self.bytes.extend((-1_i16).to_be_bytes()),
            (false, _) => self.bytes.extend((-1_i32).to_be_bytes()),
        }
    }

    /// A length as this version writes it: compact ones are one more than they mean.
    fn length(&mut self, length: usize, width: Width, of_array: bool) {
        if self.flexible {
            self.count(length + 1, Width::Varint, of_array);
        } else {
            self.count(length, width, of_array);
        }
    }

    fn count(&mut self, number: usize, width: Width, of_array: bool) {
        let at = self.bytes.len();
        let number = u32::try_from(number).expect("frames are small");
        match width {
            Width::Int16 => self.bytes.extend(&number.to_be_bytes()[2..]),
            Width::Int32 => self.bytes.extend(number.to_be_bytes()),
            Width::Varint => self.bytes.extend(varint(number)),
        }
        self.counts.push(Count { at, bytes: self.bytes.len() - at, width, of_array });
    }
}

/// An unsigned varint.
pub(super) fn varint(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number.to_be_bytes()[3] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_be_bytes()[3]);
    bytes
}
