# Kafka's own command-line classes (the newest Java client and admin client). Sourced by run.sh.
need java python3
export KAFKA_LIBS
ls "${KAFKA_LIBS:?the directory of the jars of Apache Kafka}"/kafka-tools-*.jar >/dev/null 2>&1 || die "no kafka-tools jar in '$KAFKA_LIBS'"
say "java tools: $(cd "$KAFKA_LIBS" && ls kafka-tools-*.jar kafka-clients-*.jar | tr '\n' ' ')"
export T=jt-$RUN_ID

J() { ${JX:-} java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Dorg.slf4j.simpleLogger.defaultLogLevel=${JLOG:-error} -cp "$KAFKA_LIBS/*" "$@" 2>&1; }
P=org.apache.kafka.tools; export P
topics() { J $P.TopicCommand --bootstrap-server $BOOTSTRAP "$@"; }
groups() { J $P.consumer.group.ConsumerGroupCommand --bootstrap-server $BOOTSTRAP "$@"; }
configs() { J kafka.admin.ConfigCommand --bootstrap-server $BOOTSTRAP "$@"; }
produce() { J $P.ConsoleProducer --bootstrap-server $BOOTSTRAP "$@"; }
consume() { J $P.consumer.ConsoleConsumer --bootstrap-server $BOOTSTRAP --timeout-ms 15000 "$@"; }
offsets() { J $P.GetOffsetShell --bootstrap-server $BOOTSTRAP "$@"; }
perf()    { J $P.ProducerPerformance --throughput -1 --record-size 100 --num-records "$1" --topic "$2" --producer-props bootstrap.servers=$BOOTSTRAP "${@:3}"; }
mk()      { python3 "$HERE/topics.py" "$BOOTSTRAP" create "$@"; }
fails()   { local o; if o=$("$@"); then echo "$o"; t_fail "did not fail: $*"; fi; echo "$o"; }
export -f J topics groups configs produce consume offsets perf mk fails

step_api_versions() { local o; o=$(J $P.BrokerApiVersionsCommand --bootstrap-server $BOOTSTRAP); for k in 'Produce\(0\)' 'Fetch\(1\)' 'ListOffsets\(2\)' 'Metadata\(3\)'; do expect "$o" "$k: .*usable"; done; }
step_topic_create() { expect "$(topics --create --topic $T-tc --partitions 3 --replication-factor 1 --config retention.ms=123456)" "Created topic $T-tc"; }
step_topic_create_defaults() { topics --create --topic $T-tcd; expect "$(topics --describe --topic $T-tcd)" 'ReplicationFactor: 1'; }
step_topic_create_exists() { mk $T-tce 1; expect "$(fails topics --create --topic $T-tce)" 'already exists'; }
step_topic_create_if_not_exists() { mk $T-tcn 1; topics --create --if-not-exists --topic $T-tcn; }
step_topic_create_assignment() { local id; id=$(topics --describe --topic $(mk $T-tca0 1; echo $T-tca0) | grep -oE 'Leader: [0-9]+' | head -1 | cut -d' ' -f2)
       topics --create --topic $T-tca --replica-assignment $id,$id; expect "$(topics --describe --topic $T-tca)" 'PartitionCount: 2'; }
step_topic_create_bad_config() { expect "$(fails topics --create --topic $T-tcb --config no.such.config=1)" 'Unknown topic config name: no.such.config|InvalidConfigurationException'; }
step_topic_create_bad_value() { expect "$(fails topics --create --topic $T-tcv --config retention.ms=soon)" 'Invalid value soon for configuration retention.ms|Invalid(Configuration|Config)Exception'; }
step_topic_create_too_many_replicas() { expect "$(fails topics --create --topic $T-tcr --replication-factor 3)" 'InvalidReplicationFactorException'; }
step_topic_list() { mk $T-tl 1; expect "$(topics --list)" "^$T-tl$"; }
step_topic_describe() { mk $T-td 3 retention.ms=98765; local o; o=$(topics --describe --topic $T-td); expect "$o" 'PartitionCount: 3'; expect "$o" 'retention.ms=98765'
       expect "$o" 'Partition: 2.Leader: [0-9]+.Replicas: [0-9]+.Isr: [0-9]+'; expect "$o" 'TopicId: [A-Za-z0-9_-]{22}'; }
step_topic_describe_unavailable() { same "$(topics --describe --unavailable-partitions --topic $(mk $T-tdu 1; echo $T-tdu))" ""; }
step_topic_describe_unknown() { expect "$(fails topics --describe --topic $T-nope)" 'does not exist'; }
step_topic_add_partitions() { mk $T-ta 2; topics --alter --topic $T-ta --partitions 5; expect "$(topics --describe --topic $T-ta)" 'PartitionCount: 5'; }
step_topic_fewer_partitions() { mk $T-tf 4; expect "$(fails topics --alter --topic $T-tf --partitions 2)" 'InvalidPartitionsException'; }
step_topic_delete() { mk $T-tdel 1; topics --delete --topic $T-tdel; sleep 1; reject "$(topics --list)" "^$T-tdel$"; }
step_topic_recreate() { mk $T-tre 1; echo old | produce --topic $T-tre; topics --delete --topic $T-tre; sleep 1; topics --create --topic $T-tre --partitions 2; same "$(offsets --topic $T-tre | tr '\n' ' ')" "$T-tre:0:0 $T-tre:1:0 "; }
step_console_plain() { mk $T-cp 1; seq 1 500 | produce --topic $T-cp; same "$(consume --topic $T-cp --from-beginning --max-messages 500 | head -500 | md5sum)" "$(seq 1 500 | md5sum)"; }
step_console_keys_headers() { mk $T-ck 1; printf 'h1=a,h2=b\tk1\tv1\n' | produce --topic $T-ck --property parse.key=true --property parse.headers=true --property headers.separator=, --property headers.key.separator==
       expect "$(consume --topic $T-ck --from-beginning --max-messages 1 --property print.key=true --property print.headers=true --property print.offset=true --property print.partition=true)" 'Partition:0.Offset:0.h1:[^ ]*a,h2:[^ ]*b.k1.v1|h1=a,h2=b'; }
console_codec() { mk $T-cz$1 1; seq 1 2000 | produce --topic $T-cz$1 --compression-codec $1 --batch-size 16000; same "$(consume --topic $T-cz$1 --from-beginning --max-messages 2000 | head -2000 | md5sum)" "$(seq 1 2000 | md5sum)"; }
export -f console_codec
step_console_gzip() { console_codec gzip; }
step_console_snappy() { console_codec snappy; }
step_console_lz4()  { console_codec lz4; }
step_console_zstd() { console_codec zstd; }
step_topic_compression_type() { mk $T-ct 1 compression.type=lz4; seq 1 2000 | produce --topic $T-ct; same "$(consume --topic $T-ct --from-beginning --max-messages 2000 | head -2000 | md5sum)" "$(seq 1 2000 | md5sum)"; }
step_console_partition_offset() { mk $T-cpo 1; seq 0 99 | produce --topic $T-cpo; same "$(consume --topic $T-cpo --partition 0 --offset 90 --max-messages 3 | head -3 | tr '\n' ' ')" "90 91 92 "; }
step_console_pattern() { mk $T-rx-a 1; mk $T-rx-b 1; echo a | produce --topic $T-rx-a; echo b | produce --topic $T-rx-b
       same "$(consume --include "$T-rx-.*" --from-beginning --max-messages 2 | head -2 | sort | tr '\n' ' ')" "a b "; }
step_group_commit_describe() { mk $T-g 2; seq 1 100 | produce --topic $T-g; consume --topic $T-g --group $T-g1 --from-beginning --max-messages 100 | tail -1
       local o; o=$(groups --describe --group $T-g1); expect "$o" "$T-g1 +$T-g +[01] +[0-9]+ +[0-9]+ +0 "; same "$(awk -v t=$T-g '$2 == t {n += $4} END {print n}' <<<"$o")" 100
       expect "$(groups --list)" "^$T-g1$"; expect "$(groups --describe --group $T-g1 --state)" 'Empty'; }
# One live member seen from outside, for both group protocols.
live_group() { mk $T-l$1 2; seq 1 20 | produce --topic $T-l$1
       (JX="exec timeout 60"; J $P.consumer.ConsoleConsumer --bootstrap-server $BOOTSTRAP --topic $T-l$1 --group $T-lg$1 --from-beginning --consumer-property group.protocol=$1 >live-$1.out 2>&1) & local pid=$! i o m
       for i in $(seq 15); do sleep 1; o=$(groups --describe --group $T-lg$1 --state) ; grep -q Stable <<<"$o" && break; done; expect "$o" ' Stable +1$'
       m=$(groups --describe --group $T-lg$1 --members --verbose); echo "$m"; expect "$m" "$T-lg$1 .*console-consumer"; expect "$m" "$T-l$1"
       expect "$(fails groups --delete --group $T-lg$1)" 'not empty|GroupNotEmpty'
       expect "$(fails groups --reset-offsets --group $T-lg$1 --topic $T-l$1 --to-earliest --execute)" 'inactive|current state'
       kill $pid; wait $pid || true; same "$(grep -c '^[0-9]*$' live-$1.out)" 20; }
export -f live_group
step_group_live_classic() { live_group classic; }
step_group_live_consumer_protocol() { live_group consumer; expect "$(groups --list --type consumer)" "$T-lgconsumer"; }
# Two consoles share a group's partitions, one is killed with -9 and the other has them all, a third one shares with it.
console() { (JX=exec; J $P.consumer.ConsoleConsumer --bootstrap-server $BOOTSTRAP --topic $T-tw --group $T-twg --from-beginning \
       --consumer-property session.timeout.ms=6000 --consumer-property heartbeat.interval.ms=500 >$1.out 2>&1) & }
# console_members PARTITIONS COUNT: waits until so many members have so many partitions each, and no others are there.
console_members() { local i o; for i in $(seq 15); do o=$(groups --describe --group $T-twg --members || true)
       [ "$(grep -cE "console-consumer.* $1 *\$" <<<"$o")" = $2 ] && [ "$(grep -c console-consumer <<<"$o")" = $2 ] && return; sleep .5; done; echo "$o"; t_fail "not $2 members with $1 partitions each"; }
numbers() { seq $1 $2 | sed 's/.*/k&:&/' | produce --topic $T-tw --property parse.key=true --property key.separator=:; }
# shown FROM TO FILE...: waits until the consoles have shown each of these numbers.
shown() { local i; for i in $(seq 60); do [ -z "$(comm -23 <(seq $1 $2 | sort) <(sort -u "${@:3}"))" ] && return; sleep .5; done; grep -hv '^[0-9]*$' "${@:3}" || true; t_fail "not all of $1 to $2 in ${*:3}"; }
export -f console console_members numbers shown
step_group_two_consoles() { mk $T-tw 4; local a b c; console one; a=$!; console two; b=$!; console_members 2 2
       numbers 1 400; shown 1 400 one.out two.out; same "$(cat one.out two.out | sort -n | md5sum)" "$(seq 1 400 | md5sum)"
       [ -s one.out ] && [ -s two.out ] || t_fail "one of them had no record"
       kill -9 $a; wait $a || true; console_members 4 1
       numbers 401 800; shown 401 800 two.out; expect "$(groups --describe --group $T-twg --state)" ' Stable +1$'
       console three; c=$!; console_members 2 2; numbers 801 1200; shown 801 1200 two.out three.out; [ -s three.out ] || t_fail "who came later had no record"
       same "$(cat one.out two.out three.out | sort -nu | md5sum)" "$(seq 1 1200 | md5sum)"
       kill $b $c; wait $b $c || true; same "$(groups --describe --group $T-twg | awk -v t=$T-tw '$2 == t {n += $4; l += $6} END {print n, l}')" "1200 0"; }
step_group_list_states_types() { mk $T-gl 1; echo x | produce --topic $T-gl; consume --topic $T-gl --group $T-glg --from-beginning --max-messages 1 | tail -1; local o; o=$(groups --list --state Empty --type classic); expect "$o" "$T-glg +Classic +Empty|$T-glg +Empty"; }
step_group_reset_offsets() { mk $T-gr 1; seq 1 50 | produce --topic $T-gr; consume --topic $T-gr --group $T-grg --from-beginning --max-messages 50 | tail -1
       local r="groups --reset-offsets --group $T-grg --topic $T-gr"
       expect "$($r --to-earliest --dry-run)" "$T-gr +0 +0"; expect "$($r --to-earliest --execute)" "$T-gr +0 +0"; expect "$(groups --describe --group $T-grg)" "$T-gr +0 +0 +50 +50"
       expect "$($r --to-latest --execute)" "$T-gr +0 +50"; expect "$($r --shift-by -7 --execute)" "$T-gr +0 +43"; expect "$($r --to-offset 11 --execute)" "$T-gr +0 +11"; expect "$($r --by-duration PT1H --execute)" "$T-gr +0 +0"
       expect "$($r --to-datetime 2020-01-01T00:00:00.000 --export --dry-run)" "$T-gr.*,0,0"; }
step_group_reset_then_consume() { mk $T-gc 1; seq 1 30 | produce --topic $T-gc; consume --topic $T-gc --group $T-gcg --from-beginning --max-messages 30 | tail -1
       groups --reset-offsets --group $T-gcg --topic $T-gc --to-offset 25 --execute; same "$(consume --topic $T-gc --group $T-gcg --max-messages 5 | head -5 | tr '\n' ' ')" "26 27 28 29 30 "; }
step_group_delete_offsets() { mk $T-gd 1; echo x | produce --topic $T-gd; consume --topic $T-gd --group $T-gdg --from-beginning --max-messages 1 | tail -1; expect "$(groups --delete-offsets --group $T-gdg --topic $T-gd)" 'Successful'; reject "$(groups --describe --group $T-gdg)" "$T-gd +0 +1 "; }
step_group_delete() { mk $T-gx 1; echo x | produce --topic $T-gx; consume --topic $T-gx --group $T-gxg --from-beginning --max-messages 1 | tail -1; expect "$(groups --delete --group $T-gxg)" 'successful'; reject "$(groups --list)" "^$T-gxg$"; }
step_group_describe_unknown() { expect "$(groups --describe --group $T-nope || true)" 'does not exist|not found'; }
step_groups_command() { mk $T-gg 1; echo x | produce --topic $T-gg; consume --topic $T-gg --group $T-ggg --from-beginning --max-messages 1 | tail -1; expect "$(J $P.GroupsCommand --bootstrap-server $BOOTSTRAP --list)" "$T-ggg +Classic"; }
step_share_groups_list() { local o; o=$(J $P.consumer.group.ShareGroupCommand --bootstrap-server $BOOTSTRAP --list); reject "$o" 'Error|Exception'; }
step_streams_groups_list() { local o; o=$(J $P.streams.StreamsGroupCommand --bootstrap-server $BOOTSTRAP --list); reject "$o" 'Error|Exception'; }
step_perf_producer() { mk $T-pp 3; expect "$(perf 200000 $T-pp)" '^200000 records sent'; same "$(offsets --topic $T-pp | awk -F: '{n += $3} END {print n}')" 200000; }
perf_codec() { mk $T-pz$1 1; expect "$(perf 50000 $T-pz$1 compression.type=$1 acks=${2:-all})" '^50000 records sent'; same "$(offsets --topic $T-pz$1)" "$T-pz$1:0:50000"; }
export -f perf_codec
step_perf_producer_gzip() { perf_codec gzip; }; step_perf_producer_snappy() { perf_codec snappy; }; step_perf_producer_lz4() { perf_codec lz4 1; }; step_perf_producer_zstd() { perf_codec zstd; }
step_perf_producer_acks_0() { mk $T-p0 1; expect "$(perf 20000 $T-p0 acks=0 enable.idempotence=false)" '^20000 records sent'; for i in 1 2 3 4 5; do [ "$(offsets --topic $T-p0)" = "$T-p0:0:20000" ] && return; sleep .5; done; t_fail "not 20000"; }
step_perf_producer_transactions() { mk $T-ptx 2; expect "$(perf 60000 $T-ptx --transactional-id $T-ptx --transaction-duration-ms 50)" '^60000 records sent'; same "$(consume --topic $T-ptx --from-beginning --max-messages 60000 --isolation-level read_committed | grep -c '^[A-Z]\{100\}$')" 60000
       expect "$(J $P.TransactionsCommand --bootstrap-server $BOOTSTRAP list)" "$T-ptx.*(CompleteCommit|Empty)"; }
step_perf_consumer() { mk $T-pc 2; perf 100000 $T-pc | tail -1; local o; o=$(J $P.ConsumerPerformance --bootstrap-server $BOOTSTRAP --topic $T-pc --messages 100000 --timeout 20000); echo "$o"; same "$(awk -F', ' '$5 ~ /^[0-9]+$/ {print ($5 >= 100000)}' <<<"$o")" 1; }
step_end_to_end_latency() { mk $T-e2e 1; expect "$(J $P.EndToEndLatency $BOOTSTRAP $T-e2e 200 all 100)" '^Percentiles: 50th'; }
verifiable() { mk $T-v$1 3; J $P.VerifiableProducer --bootstrap-server $BOOTSTRAP --topic $T-v$1 --max-messages 5000 --acks -1 >v$1.p; same "$(grep -c producer_send_success v$1.p)" 5000
       J $P.VerifiableConsumer --bootstrap-server $BOOTSTRAP --topic $T-v$1 --group-id $T-vg$1 --max-messages 5000 --reset-policy earliest --group-protocol $1 ${2:-} >v$1.c; same "$(python3 - v$1.c <<'PY'
import json, sys
n = 0
for line in open(sys.argv[1]):
    if line.startswith("{"):
        e = json.loads(line)
        n += e["count"] if e["name"] == "records_consumed" else 0
        assert e["name"] != "offsets_committed" or e["success"], e
print(n)
PY
)" 5000; groups --describe --group $T-vg$1 | awk -v t=$T-v$1 '$2 == t {n += $4} END {exit n != 5000}' || t_fail "committed offsets do not add up"; }
export -f verifiable
step_verifiable_classic() { verifiable classic; }
step_verifiable_consumer_protocol() { verifiable consumer; }
step_offsets_shell() { mk $T-o 2; seq 1 10 | produce --topic $T-o; same "$(offsets --topic $T-o --time -2 | tr '\n' ' ')" "$T-o:0:0 $T-o:1:0 "; same "$(offsets --topic $T-o --time latest | awk -F: '{n += $3} END {print n}')" 10
       expect "$(offsets --topic $T-o --time max-timestamp)" "$T-o:[01]:[0-9]"; expect "$(offsets --topic-partitions $T-o:1 --time earliest)" "$T-o:1:0"; }
step_offsets_shell_by_time() { mk $T-ot 1; seq 1 10 | produce --topic $T-ot; sleep 1; local t; t=$(date +%s%3N); seq 11 20 | produce --topic $T-ot; same "$(offsets --topic $T-ot --time $t)" "$T-ot:0:10"; }
step_offsets_shell_local_tiered() { mk $T-oe 1; seq 1 5 | produce --topic $T-oe; expect "$(offsets --topic $T-oe --time earliest-local)" "$T-oe:0:0"; }
step_config_topic() { mk $T-c 1; configs --alter --entity-type topics --entity-name $T-c --add-config retention.ms=777777,cleanup.policy=compact; local o; o=$(configs --describe --entity-type topics --entity-name $T-c); expect "$o" 'retention.ms=777777'; expect "$o" 'cleanup.policy=compact'
       configs --alter --entity-type topics --entity-name $T-c --delete-config retention.ms; reject "$(configs --describe --entity-type topics --entity-name $T-c)" 'retention.ms=777777'; }
step_config_topic_all() { mk $T-ca 1; local o; o=$(configs --describe --all --entity-type topics --entity-name $T-ca); for k in cleanup.policy retention.ms segment.bytes max.message.bytes min.insync.replicas; do expect "$o" "$k="; done; expect "$o" 'DEFAULT_CONFIG:'; }
step_config_topic_bad_value() { mk $T-cb 1; expect "$(fails configs --alter --entity-type topics --entity-name $T-cb --add-config retention.ms=soon)" 'Invalid value soon for configuration retention.ms|Invalid(Configuration|Config|Request)Exception'; }
step_config_topic_append() { mk $T-cl 1 cleanup.policy=delete; configs --alter --entity-type topics --entity-name $T-cl --add-config 'cleanup.policy=[compact,delete]'; expect "$(configs --describe --entity-type topics --entity-name $T-cl)" 'cleanup.policy=compact,delete'; }
step_config_broker_describe() { local id; id=$(topics --describe --topic $(mk $T-cbd 1; echo $T-cbd) | grep -oE 'Leader: [0-9]+' | head -1 | cut -d' ' -f2); local o; o=$(configs --describe --all --entity-type brokers --entity-name $id); expect "$o" 'num.partitions='; expect "$o" 'log.retention'; }
step_config_broker_alter() { configs --alter --entity-type brokers --entity-default --add-config log.retention.ms=600000000; expect "$(configs --describe --entity-type brokers --entity-default)" 'log.retention.ms=600000000'; configs --alter --entity-type brokers --entity-default --delete-config log.retention.ms; reject "$(configs --describe --entity-type brokers --entity-default)" 'log.retention.ms=600000000'; }
step_config_broker_read_only() { expect "$(fails configs --alter --entity-type brokers --entity-default --add-config process.roles=broker)" 'Invalid(Request|Configuration|Config)Exception'; }
step_config_group() { configs --alter --entity-type groups --entity-name $T-cg --add-config consumer.session.timeout.ms=50000; expect "$(configs --describe --entity-type groups --entity-name $T-cg)" 'consumer.session.timeout.ms=50000'; }
step_config_client_quotas() { configs --alter --entity-type clients --entity-name $T-q --add-config producer_byte_rate=1000000; expect "$(configs --describe --entity-type clients --entity-name $T-q)" 'producer_byte_rate=1000000'; configs --alter --entity-type clients --entity-name $T-q --delete-config producer_byte_rate; }
step_config_scram_users() { expect "$(configs --alter --entity-type users --entity-name $T-u --add-config 'SCRAM-SHA-256=[iterations=4096,password=secret]')" 'Completed'; expect "$(configs --describe --entity-type users --entity-name $T-u)" 'SCRAM-SHA-256=iterations=4096'; configs --alter --entity-type users --entity-name $T-u --delete-config SCRAM-SHA-256; }
step_client_metrics() { J $P.ClientMetricsCommand --bootstrap-server $BOOTSTRAP --alter --name $T-m --metrics org.apache.kafka.producer. --interval 60000; expect "$(J $P.ClientMetricsCommand --bootstrap-server $BOOTSTRAP --list)" "$T-m"; J $P.ClientMetricsCommand --bootstrap-server $BOOTSTRAP --delete --name $T-m; }
step_delete_records() { mk $T-dr 1; seq 0 99 | produce --topic $T-dr; echo "{\"version\":1,\"partitions\":[{\"topic\":\"$T-dr\",\"partition\":0,\"offset\":40}]}" >dr.json
       expect "$(J $P.DeleteRecordsCommand --bootstrap-server $BOOTSTRAP --offset-json-file dr.json)" 'low_watermark: 40'; same "$(offsets --topic $T-dr --time -2)" "$T-dr:0:40"; same "$(consume --topic $T-dr --from-beginning --max-messages 2 | head -2 | tr '\n' ' ')" "40 41 "; }
step_delete_records_all() { mk $T-da 1; seq 0 9 | produce --topic $T-da; echo "{\"version\":1,\"partitions\":[{\"topic\":\"$T-da\",\"partition\":0,\"offset\":-1}]}" >da.json; expect "$(J $P.DeleteRecordsCommand --bootstrap-server $BOOTSTRAP --offset-json-file da.json)" 'low_watermark: 10'; }
step_log_dirs() { mk $T-ld 1; seq 1 1000 | produce --topic $T-ld; J $P.LogDirsCommand --bootstrap-server $BOOTSTRAP --describe --topic-list $T-ld | grep '^{' | python3 -c '
import json, sys
d = json.load(sys.stdin); p = [p for b in d["brokers"] for l in b["logDirs"] for p in l["partitions"]]
assert len(p) == 1 and p[0]["size"] > 1000 and p[0]["offsetLag"] == 0, p'; }
step_transactions_list() { expect "$(J $P.TransactionsCommand --bootstrap-server $BOOTSTRAP list)" '^TransactionalId'; }
step_transactions_describe() { mk $T-td2 1; perf 1000 $T-td2 | tail -1; expect "$(J $P.TransactionsCommand --bootstrap-server $BOOTSTRAP describe-producers --topic $T-td2 --partition 0)" '^[0-9]+[[:space:]]+0[[:space:]].*[[:space:]]999[[:space:]]'; }
step_transactions_find_hanging() { mk $T-fh 1; expect "$(J $P.TransactionsCommand --bootstrap-server $BOOTSTRAP find-hanging --topic $T-fh --partition 0)" '^Topic[[:space:]]+Partition'; }
step_cluster_id() { expect "$(J $P.ClusterTool cluster-id --bootstrap-server $BOOTSTRAP)" 'Cluster ID: [A-Za-z0-9_-]+'; }
step_cluster_endpoints() { expect "$(J $P.ClusterTool list-endpoints --bootstrap-server $BOOTSTRAP)" "${BOOTSTRAP##*:}"; }
step_features_describe() { expect "$(J $P.FeatureCommand --bootstrap-server $BOOTSTRAP describe)" 'metadata.version|Epoch|Feature:'; }
step_quorum_status() { expect "$(J $P.MetadataQuorumCommand --bootstrap-server $BOOTSTRAP describe --status)" 'LeaderId: +[0-9]+'; }
step_leader_election() { mk $T-le 2; local o; o=$(J $P.LeaderElectionCommand --bootstrap-server $BOOTSTRAP --election-type preferred --all-topic-partitions); reject "$o" 'Error|Exception'; }
step_leader_election_one() { mk $T-lo 1; expect "$(J $P.LeaderElectionCommand --bootstrap-server $BOOTSTRAP --election-type preferred --topic $T-lo --partition 0)" 'Valid replica already elected|no election needed|already|Successfully'; }
step_reassign_partitions() { local id; id=$(topics --describe --topic $(mk $T-ra 1; echo $T-ra) | grep -oE 'Leader: [0-9]+' | head -1 | cut -d' ' -f2); echo "{\"version\":1,\"partitions\":[{\"topic\":\"$T-ra\",\"partition\":0,\"replicas\":[$id],\"log_dirs\":[\"any\"]}]}" >ra.json
       local r="J $P.reassign.ReassignPartitionsCommand --bootstrap-server $BOOTSTRAP"; expect "$($r --reassignment-json-file ra.json --execute)" 'Successfully started'; expect "$($r --reassignment-json-file ra.json --verify)" 'is complete'; expect "$($r --list)" 'No partition reassignments'; }
step_acls_disabled() { expect "$(fails J $P.AclCommand --bootstrap-server $BOOTSTRAP --list)" 'SecurityDisabledException|UnsupportedVersionException'; }
step_delegation_tokens_disabled() { printf 'security.protocol=PLAINTEXT\n' >dt.conf; expect "$(fails J $P.DelegationTokenCommand --bootstrap-server $BOOTSTRAP --describe --command-config dt.conf)" 'UnsupportedByAuthenticationException|DelegationTokenDisabledException|UnsupportedVersionException'; }

steps "$HERE/java-tools.sh"
