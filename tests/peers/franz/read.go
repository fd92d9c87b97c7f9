package main

import (
	"bufio"
	"context"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// read prints every record's partition, offset and key, up to the ends as they are at the start.
func read(ctx context.Context, args []string) error {
	c := newCommon("read")
	committed := c.flags.Bool("committed", false, "read_committed")
	opts := append(c.parse(args), kgo.ConsumeTopics(*c.topic), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if *committed {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	left, err := unread(ctx, kadm.NewClient(client), *c.topic, *committed)
	if err != nil {
		return err
	}

	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			end, reading := left[record.Partition]
			if reading && record.Offset < end && !record.Attrs.IsControl() {
				key := "-"
				if record.Key != nil {
					key = string(record.Key)
				}
				fmt.Fprintln(out, record.Partition, record.Offset, key)
			}
			// Markers are kept to see the end where the last offset is one.
			if record.Offset >= end-1 {
				delete(left, record.Partition)
			}
		})
	}
	return nil
}

// unread gives the end offset of each partition that holds anything.
func unread(ctx context.Context, admin *kadm.Client, topic string, committed bool) (map[int32]int64, error) {
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	list := admin.ListEndOffsets
	if committed {
		list = admin.ListCommittedOffsets
	}
	ends, err := list(ctx, topic)
	if err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if start, ok := starts.Lookup(topic, end.Partition); ok && start.Offset < end.Offset {
			left[end.Partition] = end.Offset
		}
	})
	return left, ends.Error()
}
