//! Requests as data: reads `it/hostile/requests.txt`, builds frames of any version, and knows where their counts are.
//!
//! This is on purpose not the broker's own table: a mistake there must not hide itself here.

/// One request of the protocol.
#[derive(Debug)]
pub struct Api {
    /// Its number.
    pub key: i16,
    /// Its name, as in Kafka's documentation.
    pub name: String,
    /// The lowest and the highest version that is known here.
    pub versions: (i16, i16),
    flexible_from: i16,
    fields: Vec<Field>,
}

/// A field of a request.
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What `requests.txt` says to send, if it does.
    pub value: Option<String>,
    kind: Kind,
    versions: (i16, i16),
    nullable_from: Option<i16>,
    tag: Option<u8>,
}

impl Field {
    /// Whether it could not be null in the first versions, and is in those that name the thing otherwise as well.
    pub fn became_nullable(&self) -> bool {
        self.nullable_from.is_some_and(|from| from > 0)
    }
}

/// Says what the fields of a request are to hold. `nullable` is whether the version takes null there.
pub trait Values {
    /// An integer, cut to the size that the field has, or a boolean.
    fn number(&mut self, field: &Field) -> i64;
    /// A text; of an array, one of its elements.
    fn text(&mut self, field: &Field, nullable: bool) -> Option<String>;
    /// Bytes, also records.
    fn bytes(&mut self, field: &Field, nullable: bool) -> Option<Vec<u8>>;
    /// An id.
    fn uuid(&mut self, field: &Field) -> [u8; 16];
    /// How many elements an array has; of a structure that may be null, whether it is there.
    fn count(&mut self, field: &Field, nullable: bool) -> Option<usize>;
    /// Whether a field that need not be there is.
    fn tagged(&mut self, field: &Field) -> bool;
}

#[derive(Debug)]
enum Kind {
    Bool,
    /// So many bytes.
    Int(usize),
    Uuid,
    Text,
    Bytes,
    Array(Box<Self>),
    Struct(Vec<Field>),
}

/// How a count is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Two bytes, of a text.
    Int16,
    /// Four bytes, of an array or of bytes.
    Int32,
    /// An unsigned varint, one more than the count (compact forms) or the count itself (tags).
    Varint,
}

/// A place in a frame that says how much of something follows.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Where it starts, from the frame's length prefix on.
    pub at: usize,
    /// How many bytes it has now.
    pub bytes: usize,
    /// How it is written.
    pub width: Width,
    /// Whether it counts elements of an array.
    pub of_array: bool,
}

/// A whole frame with its length prefix.
#[derive(Clone, Debug)]
pub struct Frame {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Where the counts are in it.
    pub counts: Vec<Count>,
}

impl Frame {
    /// Replaces a count and puts the frame's length right.
    pub fn with_count(&self, count: Count, value: &[u8]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.splice(count.at..count.at + count.bytes, value.iter().copied());
        fix_length(&mut bytes);
        bytes
    }
}

/// Writes the length of what follows into a frame's prefix.
pub fn fix_length(frame: &mut [u8]) {
    let length = i32::try_from(frame.len() - 4).expect("frames are small");
    frame[..4].copy_from_slice(&length.to_be_bytes());
}

/// All requests of `requests.txt`.
pub fn apis() -> Vec<Api> {
    let lines =
        include_str!("../it/hostile/requests.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
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
            "i8" => Kind::Int(1),
            "i16" => Kind::Int(2),
            "i32" => Kind::Int(4),
            "i64" => Kind::Int(8),
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
    /// Whether this version has compact lengths and tags.
    pub fn is_flexible(&self, version: i16) -> bool {
        version >= self.flexible_from
    }

    /// A frame of what `values` says, with this correlation id and client id.
    pub fn frame(&self, version: i16, correlation_id: i32, client_id: &str, values: &mut dyn Values) -> Frame {
        let flexible = self.is_flexible(version);
        let mut writer = Writer { bytes: vec![0; 4], counts: Vec::new(), version, flexible, values };
        writer.bytes.extend(self.key.to_be_bytes());
        writer.bytes.extend(version.to_be_bytes());
        writer.bytes.extend(correlation_id.to_be_bytes());
        // The client id never uses the compact form.
        writer.count(client_id.len(), Width::Int16, false);
        writer.bytes.extend(client_id.as_bytes());
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
    values: &'a mut dyn Values,
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
            let tagged: Vec<&Field> = tagged.filter(|field| self.values.tagged(field)).collect();
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
        let nullable = field.nullable_from.is_some_and(|from| self.version >= from);
        match kind {
            Kind::Bool => {
                let value = self.values.number(field);
                self.bytes.push(u8::from(value != 0));
            }
            Kind::Int(bytes) => {
                let value = self.values.number(field);
                self.bytes.extend(&value.to_be_bytes()[8 - bytes..]);
            }
            Kind::Uuid => {
                let id = self.values.uuid(field);
                self.bytes.extend(id);
            }
            Kind::Text => match self.values.text(field, nullable) {
                Some(text) => self.text(&text),
                None => self.null(Width::Int16),
            },
            Kind::Bytes => match self.values.bytes(field, nullable) {
                Some(content) => {
                    self.length(content.len(), Width::Int32, false);
                    self.bytes.extend(content);
                }
                None => self.null(Width::Int32),
            },
            Kind::Array(element) => {
                let Some(count) = self.values.count(field, nullable) else { return self.null(Width::Int32) };
                self.length(count, Width::Int32, true);
                for _ in 0..count {
                    self.element(field, element);
                }
            }
            // A byte says whether there is one, where it may be null; what a nullable array is made of may not.
            Kind::Struct(fields) if nullable && matches!(field.kind, Kind::Struct(_)) => {
                match self.values.count(field, true) {
                    Some(_) => {
                        self.bytes.push(1);
                        self.fields(fields);
                    }
                    None => self.bytes.push(0xff),
                }
            }
            Kind::Struct(fields) => self.fields(fields),
        }
    }

    /// An element of an array: it is never null, though the array may be.
    fn element(&mut self, field: &Field, kind: &Kind) {
        match kind {
            Kind::Text => {
                let text = self.values.text(field, false).unwrap_or_default();
                self.text(&text);
            }
            _ => self.value(field, kind),
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
pub fn varint(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number.to_be_bytes()[3] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_be_bytes()[3]);
    bytes
}
