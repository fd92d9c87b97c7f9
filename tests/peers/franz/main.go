// Franz is the franz-go peer that keylane is measured and checked against.
//
// franz-go is the fastest client in wide use, so its figures on the same work are the ones to beat; and it is another
// implementation of groups and record batches to share a topic with. One program, a subcommand per role:
//
//	franz pool    -b BROKERS -t TOPIC -g GROUP -n RECORDS [-workers 8] [-delay 0] [-commit 500ms]
//	franz consume -b BROKERS -t TOPIC -g GROUP -n RECORDS [-max-poll 10000] [-delay 0] [-commit-each]
//	franz produce -b BROKERS -t TOPIC -n RECORDS [-keys 1000] [-size 100] [-z lz4] [-file KEY-TAB-VALUE-LINES]
//	franz read    -b BROKERS -t TOPIC [-committed]     prints "PARTITION OFFSET KEY" up to the end as it is now
//
// Each but read prints "done: records=N seconds=S rate=R/s" on stdout, seconds from the first record.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// common are the flags of every subcommand.
type common struct {
	flags   *flag.FlagSet
	brokers *string
	topic   *string
	records *int
}

func newCommon(name string) common {
	flags := flag.NewFlagSet(name, flag.ExitOnError)
	return common{
		flags:   flags,
		brokers: flags.String("b", "127.0.0.1:9092", "brokers"),
		topic:   flags.String("t", "", "topic"),
		records: flags.Int("n", 0, "records to work through"),
	}
}

// parse reads the arguments and returns the options that every client here has.
func (c common) parse(args []string) []kgo.Opt {
	_ = c.flags.Parse(args) // ExitOnError
	if *c.topic == "" {
		fmt.Fprintln(os.Stderr, "franz: -t TOPIC is missing")
		os.Exit(64)
	}
	return []kgo.Opt{kgo.SeedBrokers(strings.Split(*c.brokers, ",")...)}
}

func done(records int, start time.Time) {
	seconds := time.Since(start).Seconds()
	fmt.Printf("done: records=%d seconds=%.3f rate=%.0f/s\n", records, seconds, float64(records)/seconds)
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: franz pool|consume|produce|read FLAGS")
		os.Exit(64)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	roles := map[string]func(context.Context, []string) error{
		"pool": pool, "consume": consume, "produce": produce, "read": read,
	}
	role, known := roles[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "franz: %q is no role\n", os.Args[1])
		os.Exit(64)
	}
	if err := role(ctx, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "franz:", err)
		os.Exit(1)
	}
}
