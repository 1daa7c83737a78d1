use super::*;
use crate::Offset;
use crate::error::DamageKind;

fn stretch(position: u64, bytes: u64) -> Damaged {
    let offset = Offset(i64::try_from(position).unwrap());
    Damaged { segment: "/x".into(), position, bytes, offsets: offset..offset.next(), what: DamageKind::Short }
}

fn known(damage: &KnownDamage) -> Vec<(u64, u64)> {
    damage.all().iter().map(|known| (known.position, known.bytes)).collect()
}

#[test]
fn a_stretch_takes_the_place_of_those_it_overlaps() {
    let damage = KnownDamage::default();
    for (position, bytes) in [(300, 10), (100, 10), (200, 10), (110, 5)] {
        damage.note(stretch(position, bytes), || true);
    }
    assert_eq!(known(&damage), [(100, 10), (110, 5), (200, 10), (300, 10)]);
    damage.note(stretch(109, 100), || true);
    assert_eq!(known(&damage), [(109, 100), (300, 10)]);
    damage.note(stretch(0, 1000), || false);
    assert_eq!(known(&damage), [(109, 100), (300, 10)]);
    let next = |from| damage.next_from(from).map(|known| known.position);
    assert_eq!([0, 109, 208, 209, 309, 310].map(next), [Some(109), Some(109), Some(109), Some(300), Some(300), None]);
}

#[test]
fn a_cut_leaves_no_damage_behind_it() {
    let damage = KnownDamage::default();
    for position in [100, 200, 300] {
        damage.note(stretch(position, 50), || true);
    }
    damage.cut(220);
    assert_eq!(known(&damage), [(100, 50), (200, 20)]);
    damage.cut(200);
    assert_eq!(known(&damage), [(100, 50)]);
}
