//! Reading from start to end batch by batch, beside one pread for the same bytes.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use highwater_benches::{Subject, measure, readers};

fn read(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read/1MiB");
    group.throughput(Throughput::Bytes(1 << 20));
    let (raw, log) = readers();
    let mut subjects: [(&str, Box<dyn Subject>); 2] = [("raw", Box::new(raw)), ("log", Box::new(log))];
    for (name, subject) in &mut subjects {
        group.bench_function(*name, |bencher| bencher.iter_custom(|rounds| measure(subject.as_mut(), rounds).0));
    }
    group.finish();
}

criterion_group!(benches, read);
criterion_main!(benches);
