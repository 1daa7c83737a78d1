# kcat (librdkafka) from the command line. Sourced by run.sh.
need kcat python3 md5sum gzip
K="kcat -q -b $BOOTSTRAP"
T=kcat-$RUN_ID
export K T

# A real text of some MB: what this repository says. kcat does not produce empty lines.
find "$HERE/../.." -path '*/target' -prune -o \( -name '*.rs' -o -name '*.md' \) -type f -print0 | sort -z | xargs -0 cat | grep -av '^$' | head -c 8000000 >"$WORK/text"
lines=$(wc -l <"$WORK/text")
say "text: $lines lines, $(wc -c <"$WORK/text") bytes"
export TEXT=$WORK/text

mk()  { python3 "$HERE/topics.py" "$BOOTSTRAP" create "$@"; }
all() { $K -C -t "$1" -o beginning -e "${@:2}"; }     # whole topic to stdout
prod() { $K -P -t "$@"; }
export -f mk all prod

step_metadata_all()   { expect "$(kcat -b $BOOTSTRAP -L)" '^ [0-9]+ brokers:'; }
step_metadata_topic() { mk $T-md 3; expect "$(kcat -b $BOOTSTRAP -L -t $T-md)" "topic \"$T-md\" with 3 partitions"; }
step_metadata_json()  { mk $T-mj 2; kcat -b $BOOTSTRAP -L -J -t $T-mj | python3 -c '
import json, sys
d = json.load(sys.stdin); t = d["topics"][0]
assert len(t["partitions"]) == 2, t
assert all(p["leader"] == d["brokers"][0]["id"] and p["isrs"] for p in t["partitions"]), t'; }
step_auto_create_topic() { echo hello | prod $T-auto; same "$(all $T-auto)" hello; }
step_unknown_topic_errors() { local o; o=$(timeout 20 $K -C -t $T-nope -e -o beginning 2>&1) && t_fail "consumed an unknown topic"; expect "$o" 'Unknown topic'; }
step_plain()  { mk $T-plain 1; seq 1 100 | prod $T-plain; same "$(all $T-plain | md5sum)" "$(seq 1 100 | md5sum)"; }
step_keys()   { mk $T-keys 4; seq 1 200 | sed 's/.*/k&:v&/' | prod $T-keys -K :
                same "$(all $T-keys -f '%k=%s\n' | sort | md5sum)" "$(seq 1 200 | sed 's/.*/k&=v&/' | sort | md5sum)"; }
step_key_partitioning_stable() { mk $T-kp 4; for i in 1 2 3; do seq 1 40 | sed 's/.*/k&:v/' | prod $T-kp -K : ; done
                local o; o=$(all $T-kp -f '%k %p\n' | sort -u); same "$(wc -l <<<"$o")" 40; same "$(cut -d' ' -f2 <<<"$o" | sort -u | wc -l)" 4; }
step_null_value() { mk $T-null 1; printf 'a:\nb:x\n' | prod $T-null -K : -Z; same "$(all $T-null -Z -f '%k %S\n' | tr '\n' ,)" "a -1,b 1,"; }
step_headers() { mk $T-hdr 1; echo v | prod $T-hdr -H a=1 -H b=two -H a=3; same "$(all $T-hdr -f '%h %s\n')" "a=1,b=two,a=3 v"; }
step_headers_compressed() { mk $T-hdrz 1; seq 1 50 | prod $T-hdrz -z zstd -H id=x; same "$(all $T-hdrz -f '%h\n' | sort | uniq -c | tr -s ' ')" " 50 id=x"; }
step_timestamps() { mk $T-ts 1; local a b t; a=$(date +%s%3N); echo v | prod $T-ts; b=$(date +%s%3N); t=$(all $T-ts -f '%T\n')
                [ "$t" -ge "$a" ] && [ "$t" -le "$b" ] || t_fail "timestamp $t not in $a..$b"; }
step_log_append_time() { mk $T-lat 1 message.timestamp.type=LogAppendTime; local a t; a=$(date +%s%3N); echo v | prod $T-lat; t=$(all $T-lat -f '%T\n')
                [ "$t" -ge "$((a-1000))" ] || t_fail "timestamp $t before $a"; }
step_json_envelope() { mk $T-je 1; echo k:v | prod $T-je -K : -H h=1; all $T-je -J | python3 -c '
import json, sys
m = json.load(sys.stdin)
assert (m["key"], m["payload"], m["offset"], m["partition"]) == ("k", "v", 0, 0), m
assert m["tstype"] == "create" and m["headers"] == ["h", "1"], m'; }
codec() { mk $T-z$1 1; seq 1 5000 | sed 's/$/ the same words again and again/' >z$1.in; prod $T-z$1 -z $1 <z$1.in
          all $T-z$1 -X check.crcs=true >z$1.out; cmp z$1.in z$1.out; }
step_codec_none() { codec none; }; step_codec_gzip() { codec gzip; }; step_codec_snappy() { codec snappy; }
step_codec_lz4()  { codec lz4; };  step_codec_zstd() { codec zstd; }
step_mixed_codecs_one_topic() { mk $T-mix 1; : >mix.in; for c in none gzip snappy lz4 zstd none; do seq 1 300 | sed "s/^/$c /" | tee -a mix.in | prod $T-mix -z $c; done
          all $T-mix -X check.crcs=true >mix.out; cmp mix.in mix.out; }
file_round_trip() { mk $T-f$1 1; $K -P -t $T-f$1 -D '\n' -z $1 <$TEXT; all $T-f$1 -D '\n' -X check.crcs=true >f$1.out; cmp $TEXT f$1.out; rm f$1.out; }
step_file_round_trip_none() { file_round_trip none; }
step_file_round_trip_lz4()  { file_round_trip lz4; }
step_file_round_trip_zstd() { file_round_trip zstd; }
step_binary_message() { mk $T-bin 1; head -c 900000 /dev/urandom >bin.in; $K -P -t $T-bin bin.in; all $T-bin -f '%s' >bin.out; cmp bin.in bin.out; }
step_message_too_large() { mk $T-big 1; head -c 3000000 /dev/urandom >big.in; local o; o=$(${K/-q/} -P -t $T-big -X message.max.bytes=9000000 big.in 2>&1) && t_fail "3 MB accepted"
          expect "$o" 'size too large'; same "$(all $T-big | wc -c)" 0; }
step_max_message_bytes_topic() { mk $T-mmb 1 max.message.bytes=5000000; head -c 3000000 /dev/urandom >mmb.in; $K -P -t $T-mmb -X message.max.bytes=9000000 mmb.in
          all $T-mmb -X fetch.message.max.bytes=10000 -f '%s' >mmb.out; cmp mmb.in mmb.out; }
step_explicit_partition() { mk $T-p 3; echo two | prod $T-p -p 2; same "$(all $T-p -p 2 -f '%p %o %s\n')" "2 0 two"; same "$(all $T-p -p 0)" ""; }
step_unknown_partition() { mk $T-up 1; local o; o=$(echo x | timeout 20 ${K/-q/} -P -t $T-up -p 9 -X message.timeout.ms=8000 2>&1) && t_fail "accepted partition 9"; expect "$o" '[Uu]nknown partition'; }
acks() { mk $T-acks$1 1; seq 1 500 | prod $T-acks$1 -X acks=$1; for i in 1 2 3 4 5; do [ "$(all $T-acks$1 | wc -l)" = 500 ] && return; sleep .3; done; t_fail "not 500"; }
step_acks_0() { acks 0; }; step_acks_1() { acks 1; }; step_acks_all() { acks -1; }
step_idempotent() { mk $T-idem 2; seq 1 20000 | prod $T-idem -X enable.idempotence=true; same "$(all $T-idem | sort -n | md5sum)" "$(seq 1 20000 | md5sum)"; }
step_idempotent_zstd() { mk $T-idemz 1; seq 1 20000 | prod $T-idemz -X enable.idempotence=true -z zstd; same "$(all $T-idemz | md5sum)" "$(seq 1 20000 | md5sum)"; }
step_transaction_commit() { mk $T-tx 2; seq 1 1000 | prod $T-tx -X transactional.id=$T-tx; same "$(all $T-tx -X isolation.level=read_committed | sort -n | md5sum)" "$(seq 1 1000 | md5sum)"; }
step_transaction_same_id_again() { mk $T-tx2 1; for i in 1 2 3; do echo $i | prod $T-tx2 -X transactional.id=$T-tx2; done; same "$(all $T-tx2 -X isolation.level=read_committed | tr '\n' ' ')" "1 2 3 "; }
offsets_topic() { mk $T-$1 1; seq 0 99 | prod $T-$1; }
export -f codec file_round_trip acks offsets_topic
step_from_beginning() { offsets_topic fb; same "$($K -C -t $T-fb -o beginning -c 3 | tr '\n' ' ')" "0 1 2 "; }
step_from_end()       { offsets_topic fe; same "$(all $T-fe -o end)" ""; }
step_from_end_live()  { offsets_topic fl; (sleep 2; echo live | prod $T-fl) & same "$($K -C -t $T-fl -o end -c 1)" live; wait; }
step_from_minus_5()   { offsets_topic fm; same "$($K -C -t $T-fm -p 0 -o -5 -e | tr '\n' ' ')" "95 96 97 98 99 "; }
step_from_absolute()  { offsets_topic fa; same "$($K -C -t $T-fa -p 0 -o 42 -c 3 -f '%o:%s ')" "42:42 43:43 44:44 "; }
step_offset_out_of_range_error() { offsets_topic oor; local o; o=$(timeout 20 $K -C -t $T-oor -p 0 -o 5000 -e -X auto.offset.reset=error 2>&1) || true; expect "$o" 'out of range|Offset out'; }
step_offset_out_of_range_reset() { offsets_topic oorr; same "$(timeout 20 $K -C -t $T-oorr -p 0 -o 5000 -e -X auto.offset.reset=smallest | wc -l)" 100; }
step_query_offsets() { offsets_topic q; same "$($K -Q -t $T-q:0:-1)" "$T-q [0] offset 100"; same "$($K -Q -t $T-q:0:-2)" "$T-q [0] offset 0"; }
step_query_offset_by_time() { mk $T-qt 1; seq 1 10 | prod $T-qt; sleep 1.2; local t; t=$(date +%s%3N); sleep 0.2; seq 11 20 | prod $T-qt
          same "$($K -Q -t $T-qt:0:$t)" "$T-qt [0] offset 10"; same "$($K -Q -t $T-qt:0:1)" "$T-qt [0] offset 0"; }
step_query_offset_after_end() { offsets_topic qe; local o; o=$($K -Q -t $T-qe:0:$(( $(date +%s%3N) + 3600000 ))); expect "$o" 'offset (-1|100)'; }
step_consume_time_range() { mk $T-tr 1; seq 1 5 | prod $T-tr; sleep 1.2; local a b; a=$(date +%s%3N); sleep .2; seq 6 9 | prod $T-tr; sleep 1.2; b=$(date +%s%3N); sleep .2; seq 10 12 | prod $T-tr
          same "$($K -C -t $T-tr -p 0 -o s@$a -o e@$b | tr '\n' ' ')" "6 7 8 9 "; }
step_group_consume_commit_resume() { mk $T-gr 3; seq 1 300 | sed 's/.*/k&:&/' | prod $T-gr -K : ; local g="$K -G $T-g1 -X auto.offset.reset=earliest -e"
          timeout 40 $g $T-gr >gr1.out; same "$(sort -n gr1.out | md5sum)" "$(seq 1 300 | md5sum)"
          echo k:more | prod $T-gr -K : ; same "$(timeout 40 $g $T-gr)" more; }
step_group_two_topics() { mk $T-ga 1; mk $T-gb 2; seq 1 10 | prod $T-ga; seq 11 20 | prod $T-gb
          same "$(timeout 40 $K -G $T-g2 -X auto.offset.reset=earliest -e $T-ga $T-gb | sort -n | md5sum)" "$(seq 1 20 | md5sum)"; }
step_group_regex() { mk $T-rx-a 1; mk $T-rx-b 1; echo a | prod $T-rx-a; echo b | prod $T-rx-b
          same "$(timeout 40 $K -G $T-g3 -X auto.offset.reset=earliest -e "^$T-rx-.*" | sort | tr '\n' ' ')" "a b "; }
# Two members share 4 partitions, one goes, the other takes over all.
balance() { mk $T-$1 4; local o="-X auto.offset.reset=earliest -X session.timeout.ms=6000 -X heartbeat.interval.ms=500 ${*:2}"
          kcat -b $BOOTSTRAP -G $T-$1-g $o -u -f '%p %s\n' $T-$1 >$1.m1 2>$1.e1 & local a=$!
          kcat -b $BOOTSTRAP -G $T-$1-g $o -u -f '%p %s\n' $T-$1 >$1.m2 2>$1.e2 & local b=$!
          for i in $(seq 60); do [ "$(tail -qn 1 $1.e1 $1.e2 | grep -c ' \[[0-9]\]')" = 2 ] && break; sleep .25; done; sleep 1
          seq 1 400 | sed 's/.*/k&:&/' | prod $T-$1 -K : ; for i in $(seq 40); do [ "$(cat $1.m1 $1.m2 | wc -l)" = 400 ] && break; sleep .25; done
          kill $a; wait $a || true; sleep 1
          seq 401 800 | sed 's/.*/k&:&/' | prod $T-$1 -K : ; for i in $(seq 60); do [ "$(cat $1.m1 $1.m2 | wc -l)" -ge 800 ] && break; sleep .25; done
          kill $b; wait $b || true
          cat $1.e1 $1.e2
          same "$(cat $1.m1 $1.m2 | cut -d' ' -f2 | sort -n | uniq | md5sum)" "$(seq 1 800 | md5sum)"
          same "$(cat $1.m1 $1.m2 | wc -l)" 800
          [ -s $1.m1 ] && [ -s $1.m2 ] || t_fail "one member had no partition"
          same "$(awk '$2 > 400 {print $1}' $1.m2 | sort -u | wc -l)" 4; }
export -f balance
step_group_balance_range() { balance br; }
step_group_balance_cooperative() { balance bc -X partition.assignment.strategy=cooperative-sticky; }
step_group_static_member() { mk $T-gs 2; seq 1 20 | prod $T-gs; local g="$K -G $T-g4 -X group.instance.id=one -X session.timeout.ms=6000 -X auto.offset.reset=earliest -e"
          same "$(timeout 30 $g $T-gs | wc -l)" 20; echo again | prod $T-gs; same "$(timeout 30 $g $T-gs)" again; }
step_concurrent_producers() { mk $T-cp 2; local p=(); for i in 1 2 3 4; do seq -f "$i-%.0f" 1 5000 | prod $T-cp & p+=($!); done; wait "${p[@]}"
          all $T-cp >cp.out; same "$(wc -l <cp.out)" 20000; same "$(sort -u cp.out | wc -l)" 20000; }
step_many_small_batches() { mk $T-sb 1; seq 1 2000 | prod $T-sb -X batch.num.messages=1 -X linger.ms=0; same "$(all $T-sb | md5sum)" "$(seq 1 2000 | md5sum)"; }
step_tiny_fetches() { mk $T-tf 1; seq 1 3000 | prod $T-tf -X batch.num.messages=50; same "$(all $T-tf -X fetch.message.max.bytes=1000 -X fetch.max.bytes=1000 -X message.max.bytes=1000 | md5sum)" "$(seq 1 3000 | md5sum)"; }
step_ten_partitions_200k() { mk $T-tp 10; seq 1 200000 | prod $T-tp -X queue.buffering.max.messages=300000; all $T-tp | sort -n >tp.out; same "$(md5sum <tp.out)" "$(seq 1 200000 | md5sum)"; rm tp.out; }

steps "$HERE/kcat.sh"
