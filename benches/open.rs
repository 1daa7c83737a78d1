//! Opening after a clean stop, beside listing the directory and reading the tail; opening after a crash, beside reading
//! everything once and its CRC-32C.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use highwater_benches::{LogOpen, LogScan, RawOpen, RawScan, Subject, measure};

fn open(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("open/clean");
    let mut subjects: [(&str, Box<dyn Subject>); 2] =
        [("raw", Box::new(RawOpen::new())), ("log", Box::new(LogOpen::new()))];
    for (name, subject) in &mut subjects {
        group.bench_function(*name, |bencher| bencher.iter_custom(|rounds| measure(subject.as_mut(), rounds).0));
    }
    group.finish();

    let mut group = criterion.benchmark_group("open/crashed");
    group.throughput(Throughput::Bytes(64 << 20));
    group.sample_size(10);
    let mut subjects: [(&str, Box<dyn Subject>); 2] =
        [("raw", Box::new(RawScan::new())), ("log", Box::new(LogScan::new()))];
    for (name, subject) in &mut subjects {
        group.bench_function(*name, |bencher| bencher.iter_custom(|rounds| measure(subject.as_mut(), rounds).0));
    }
    group.finish();
}

criterion_group!(benches, open);
criterion_main!(benches);
