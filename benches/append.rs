//! Appending, beside one write and one pass of CRC-32C for the same bytes.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use highwater_benches::{LogAppend, RawAppend, SHAPES, Subject, measure};

fn append(criterion: &mut Criterion) {
    for shape in SHAPES {
        let mut group = criterion.benchmark_group(format!("append/{}", shape.name));
        group.throughput(Throughput::Bytes(shape.encode().len() as u64));
        let mut subjects: [(&str, Box<dyn Subject>); 2] =
            [("raw", Box::new(RawAppend::new(shape))), ("log", Box::new(LogAppend::new(shape)))];
        for (name, subject) in &mut subjects {
            group.bench_function(*name, |bencher| bencher.iter_custom(|rounds| measure(subject.as_mut(), rounds).0));
        }
        group.finish();
    }
}

criterion_group!(benches, append);
criterion_main!(benches);
