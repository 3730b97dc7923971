// Curator's InterProcessMutex, as a client of the interoperability tests.
//
// Its arguments are HOST PORT NAME. It reads one command per line on stdin, and answers on stdout:
//
//     take TTL_MS             held | busy
//     wait TTL_MS             held
//     release                 released | not-mine
//     loop SECONDS TTL_MS     one line `IN OUT` for each hold, nanoseconds of the monotonic clock; then `done`

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

public final class Curator {
    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }

    private static void pause(long mostMicros) throws InterruptedException {
        TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextLong(mostMicros));
    }

    private static void loop(InterProcessMutex mutex, double seconds) throws Exception {
        // On Linux this is the clock that the other clients read.
        long end = System.nanoTime() + (long) (seconds * 1e9);
        List<String> holds = new ArrayList<>();
        while (System.nanoTime() < end) {
            mutex.acquire();
            long entered = System.nanoTime();
            pause(2_000);
            holds.add(entered + " " + System.nanoTime());
            mutex.release();
            pause(10_000);
        }
        holds.forEach(Curator::say);
        say("done");
    }

    public static void main(String[] args) throws Exception {
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(args[0] + ":" + args[1], 6_000, 6_000, new RetryForever(50));
        client.start();
        client.blockUntilConnected();
        InterProcessMutex mutex = new InterProcessMutex(client, "/" + args[2]);
        say("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "take":
                    // Not zero: Curator would then give up before it has asked the server.
                    say(mutex.acquire(200, TimeUnit.MILLISECONDS) ? "held" : "busy");
                    break;
                case "wait":
                    mutex.acquire();
                    say("held");
                    break;
                case "release":
                    mutex.release();
                    say("released");
                    break;
                case "loop":
                    loop(mutex, Double.parseDouble(words[1]));
                    break;
                default:
                    throw new IllegalArgumentException("told " + line + ", which is unknown");
            }
        }
        client.close();
    }
}
