package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "lz4": kgo.Lz4Compression(), "gzip": kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(), "zstd": kgo.ZstdCompression(),
}

// produce fills a topic as fast as the client can: idempotent, acks=all, 5 ms linger, batches up to 1 MiB.
func produce(ctx context.Context, args []string) error {
	c := newCommon("produce")
	keys := c.flags.Int("keys", 1000, "distinct keys")
	size := c.flags.Int("size", 100, "bytes a value")
	codec := c.flags.String("z", "lz4", "compression")
	file := c.flags.String("file", "", "read KEY<tab>VALUE lines instead of making records")
	opts := append(c.parse(args), kgo.DefaultProduceTopic(*c.topic), kgo.ProducerLinger(5*time.Millisecond),
		kgo.ProducerBatchMaxBytes(1<<20), kgo.MaxBufferedRecords(100_000),
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	compression, known := codecs[*codec]
	if !known {
		return fmt.Errorf("%q is no compression", *codec)
	}
	client, err := kgo.NewClient(append(opts, kgo.ProducerBatchCompression(compression))...)
	if err != nil {
		return err
	}
	defer client.Close()

	var sent, failed atomic.Int64
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.Add(1)
			return
		}
		sent.Add(1)
	}
	next, err := source(*file, *c.records, *keys, *size)
	if err != nil {
		return err
	}
	start := time.Now()
	for record := next(); record != nil && ctx.Err() == nil; record = next() {
		client.Produce(ctx, record, promise)
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	done(int(sent.Load()), start)
	if failed.Load() > 0 {
		return fmt.Errorf("%d records failed", failed.Load())
	}
	return nil
}

// source returns a function that gives the next record, nil after the last.
func source(path string, records, keys, size int) (func() *kgo.Record, error) {
	if path == "" {
		names := make([][]byte, keys)
		for i := range names {
			names[i] = fmt.Appendf(nil, "key-%d", i)
		}
		// Text that compresses about 2:1, cut at a new place for every record.
		text := words(rand.New(rand.NewSource(1)), 1<<20)
		i := 0
		return func() *kgo.Record {
			if i >= records {
				return nil
			}
			at := i * 97 % (len(text) - size)
			record := &kgo.Record{Key: names[i%keys], Value: text[at : at+size]}
			i++
			return record
		}, nil
	}
	input, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bufio.NewReaderSize(input, 1<<20))
	left := records
	return func() *kgo.Record {
		if records > 0 && left == 0 || !lines.Scan() {
			return nil
		}
		left--
		// The scanner reuses its buffer, the client keeps the record until it is sent.
		line := bytes.Clone(lines.Bytes())
		key, value, _ := bytes.Cut(line, []byte{'\t'})
		return &kgo.Record{Key: key, Value: value}
	}, nil
}

func words(random *rand.Rand, size int) []byte {
	text := make([]byte, size)
	const letters = "abcdefghijklmnopqrstuvwxyz012345"
	for i := range text {
		text[i] = letters[random.Intn(len(letters))]
		// Every other stretch repeats what stood 64 bytes before.
		if i >= 64 && i/16%2 == 1 {
			text[i] = text[i-64]
		}
	}
	return text
}
