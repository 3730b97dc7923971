// A worker of the benchmark that locks with Go's clientv3/concurrency. Its protocol is in tools/bench/src/worker.rs.
//
// Built with Debian's packages golang-go and golang-etcd-server-dev:
//
//	GOPATH=/usr/share/gocode GO111MODULE=off go build tools/bench/peers/etcd_concurrency.go
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

const clockBoottime = 7

func now() int64 {
	var time syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&time)), 0)
	return time.Nano()
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadString('\n')
	must(err)
	var job struct {
		URL   string `json:"url"`
		Name  string `json:"name"`
		Tasks int    `json:"tasks"`
		First int    `json:"first"`
	}
	must(json.Unmarshal([]byte(line), &job))
	hosts := strings.SplitN(strings.TrimPrefix(job.URL, "etcd://"), "/", 2)[0]
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(hosts, ",")})
	must(err)
	// A mutex uses the key of its session, so each task needs its own session.
	sessions := make([]*concurrency.Session, job.Tasks)
	for i := range sessions {
		sessions[i], err = concurrency.NewSession(client, concurrency.WithTTL(30))
		must(err)
	}
	fmt.Println("ready")
	var until int64
	line, err = in.ReadString('\n')
	must(err)
	_, err = fmt.Sscanf(line, "go %d", &until)
	must(err)
	seen := make([]strings.Builder, job.Tasks)
	var tasks sync.WaitGroup
	for i, session := range sessions {
		tasks.Add(1)
		go func(number int, session *concurrency.Session, seen *strings.Builder) {
			defer tasks.Done()
			mutex := concurrency.NewMutex(session, "/bench/"+job.Name)
			for {
				asked := now()
				must(mutex.Lock(context.Background()))
				granted := now()
				leaving := now()
				must(mutex.Unlock(context.Background()))
				fmt.Fprintf(seen, "held %d %d %d %d 0\n", number, asked, granted, leaving)
				if leaving >= until {
					return
				}
			}
		}(job.First+i, session, &seen[i])
	}
	fmt.Println("waiting")
	tasks.Wait()
	for i := range seen {
		fmt.Print(seen[i].String())
	}
	fmt.Println("end")
	for _, session := range sessions {
		must(session.Close())
	}
}
