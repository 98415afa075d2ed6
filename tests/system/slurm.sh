#!/usr/bin/env bash
# A real one-node SLURM on loopback, for the tests (Debian, root, no systemd needed):
#   slurm.sh up DIR     install what is missing, start it, print "export SLURM_CONF=..."
#   slurm.sh down DIR   cancel its jobs and stop it; harmless where nothing runs
# Only that export line goes to stdout. Everything written lies under DIR; `up` on a DIR used
# before stops what still runs there and starts again with its keys, jobs and accounting.
# submitit learns a job's end from its result file or from `sacct`, and a killed job leaves no
# file: without accounting it waits for ever. In SLURM 22.05 sacct needs slurmdbd and MariaDB.
set -euo pipefail
exec 3>&1 1>&2 # stdout is kept for the export line
umask 022      # munge and mysql, the users, must get into DIR
PATH=$PATH:/usr/sbin:/sbin

die() { echo "slurm.sh: $*"; exit 1; }
[[ $# -eq 2 && $1 =~ ^(up|down)$ ]] || die "usage: slurm.sh up|down DIR"
dir=$(realpath -m -- "$2")
# slurm.conf knows no quoting, and a socket's path may have at most 107 characters
[[ $dir =~ ^[A-Za-z0-9/._+-]{2,85}$ ]] || die "DIR must be short and plain: $dir"
export SLURM_CONF=$dir/slurm.conf
daemons=(slurmd slurmctld slurmdbd mariadbd munged) # in the order they are stopped

# pid DAEMON: its process id, if the pid file names a process of that name that still runs (one
# that has ended may stay a zombie, Z, where a container's first process reaps none)
pid() {
    local p
    p=$(cat "$dir/pid/$1" 2>/dev/null) && [[ $(cat "/proc/$p/stat" 2>/dev/null) == "$p ($1) "[!ZX]* ]] && echo "$p"
}
alive() { pid "$1" >/dev/null; }
gone() { ! alive "$1"; }
# within SECONDS COMMAND...: wait until the command succeeds, for so long at most
within() {
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        ((SECONDS < end)) || return 1
        sleep 0.2
    done
}
# start COMMAND...: daemons get their own session and none of our pipes, or $(slurm.sh up DIR)
# would wait for their end
start() { timeout 30 setsid -w "$@" </dev/null >>"$dir/log/start" 2>&1 3>&-; }
as_munge=(setpriv --reuid=munge --regid=munge --clear-groups)
query() { timeout 10 "$@" 2>>"$dir/log/start"; }
idle() { [[ $(query sinfo -h -o %T) == idle ]]; }
no_jobs() { [[ -z $(query squeue -h -o %A) ]]; }
answers() { query munge -n --socket="$dir/munge/socket" >/dev/null; }
database() { query mariadb-admin --no-defaults --socket="$dir/db/socket" ping >/dev/null; }
registered() { query sacctmgr -n list cluster format=cluster | grep -qw test; }
closed() { ! (exec 4<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

down() {
    local d
    # a job's own processes would outlive slurmd
    if alive slurmctld; then
        query squeue -h -o %A | query xargs -r scancel || true
        within 20 no_jobs || echo "slurm.sh: jobs still running"
    fi
    for d in "${daemons[@]}"; do
        alive "$d" || continue
        kill "$(pid "$d")" || true
        within 20 gone "$d" || { kill -9 "$(pid "$d")" && within 10 gone "$d"; } || die "$d does not stop"
    done
}

install() {
    local d missing=0
    for d in "${daemons[@]}"; do command -v "$d" >/dev/null || missing=1; done
    ((missing)) || return 0
    timeout 300 apt-get update
    DEBIAN_FRONTEND=noninteractive timeout 900 apt-get -o DPkg::Lock::Timeout=120 install -y \
        --no-install-recommends slurm-wlm munge slurmdbd mariadb-server
}

configure() {
    local host memory cpus port
    host=$(hostname -s)
    # a tenth is left free: a node with less memory than it claims is drained
    memory=$(awk '/^MemTotal:/ { print int($2 / 1024 * 0.9) }' /proc/meminfo)
    cpus=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # nproc heeds these two
    # below the range that the kernel hands out to clients
    port=$((20000 + RANDOM % 10000))
    until closed "$port" && closed $((port + 1)) && closed $((port + 2)); do port=$((port + 3)); done

    # cred_expire is also how long a requeued job waits before it starts again (else 120 s)
    cat >"$dir/slurm.conf" <<END
ClusterName=test
SlurmUser=root
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthInfo=socket=$dir/munge/socket,cred_expire=10
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/pid/slurmctld
SlurmdPidFile=$dir/pid/slurmd
SlurmctldLogFile=$dir/log/slurmctld
SlurmdLogFile=$dir/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((port + 2))
AccountingStoragePass=$dir/munge/socket
MailProg=/bin/true
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=3600
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
    # no cgroup is used, but slurmd wants a plugin that it knows
    echo CgroupPlugin=cgroup/v1 >"$dir/cgroup.conf"
    # slurmdbd refuses a file that others may read
    (umask 077 && cat >"$dir/slurmdbd.conf") <<END
SlurmUser=root
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=$((port + 2))
AuthInfo=socket=$dir/munge/socket
PidFile=$dir/pid/slurmdbd
LogFile=$dir/log/slurmdbd
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
END
}
# failed: what `up` does when it stops before the end
failed() { tail -n 5 "$dir"/log/* "$dir"/munge/log || true; down; }

up() {
    [[ $EUID -eq 0 ]] || die "needs root"
    install
    mkdir -p "$dir"/{pid,log,state,spool,munge,db}
    down
    trap failed EXIT
    "${as_munge[@]}" test -x "$dir/munge" || die "user munge cannot enter $dir (a parent of mode 700?)"
    configure

    # munged and mariadbd run as their own users, with directories of their own
    [[ -s $dir/munge/key ]] || head -c 1024 /dev/urandom >"$dir/munge/key"
    chmod 400 "$dir/munge/key"
    chown -R munge: "$dir/munge"
    chown mysql: "$dir/db"
    ln -sfn ../munge/pid "$dir/pid/munged"
    ln -sfn ../db/pid "$dir/pid/mariadbd"
    start "${as_munge[@]}" munged --key-file="$dir/munge/key" --socket="$dir/munge/socket" \
        --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
    within 10 answers

    # the database listens on its socket alone, and lets root in by its user id
    [[ -d $dir/db/data ]] || start mariadb-install-db --no-defaults --user=mysql --skip-test-db \
        --datadir="$dir/db/data" --auth-root-authentication-method=socket --auth-root-socket-user=root
    setsid mariadbd --no-defaults --user=mysql --datadir="$dir/db/data" --skip-networking \
        --socket="$dir/db/socket" --pid-file="$dir/db/pid" --innodb-lock-wait-timeout=900 \
        </dev/null >>"$dir/log/mariadbd" 2>&1 3>&- &
    within 30 database
    MYSQL_UNIX_PORT=$dir/db/socket start slurmdbd
    within 20 query sacctmgr -n list cluster >/dev/null
    registered || query sacctmgr -i add cluster test

    start slurmctld
    start slurmd
    within 60 idle
    trap - EXIT
    echo "export SLURM_CONF=$SLURM_CONF" >&3
}

"$1"
